use soteria_accountant::event::*;
fn cpu() -> f64 {
    static S: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    S.get_or_init(std::time::Instant::now)
        .elapsed()
        .as_secs_f64()
        * 1e3
}
fn main() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/accounting.csv");
    let text = std::fs::read_to_string(path).unwrap();
    for line in text.lines().skip(1) {
        let c: Vec<&str> = line.split(',').collect();
        if c[1] == "gaussian" {
            continue;
        }
        let q: f64 = c[3].parse().unwrap();
        let list = |s: &str| {
            s.split(';')
                .map(|t| t.parse::<f64>().unwrap())
                .collect::<Vec<_>>()
        };
        let (sh, mut pr) = if c[1] == "mixture_gaussian" {
            (list(c[5]), list(c[6]))
        } else {
            (vec![0.0, 1.0], vec![1.0 - q, q])
        };
        let s: f64 = pr.iter().sum();
        pr.iter_mut().for_each(|p| *p /= s);
        let adj = if c[2] == "add_remove" {
            Adjacency::ZeroOut
        } else {
            Adjacency::ReplaceOne
        };
        let e = [
            Release::new(ShiftMixture::new(sh, pr).unwrap(), c[4].parse().unwrap())
                .unwrap()
                .times(c[7].parse::<f64>().unwrap() as u64),
        ];
        let d: f64 = c[8].parse().unwrap();
        let mut times: Vec<f64> = (0..5)
            .map(|_| {
                let t = cpu();
                soteria_accountant::epsilon(&e, d, adj).unwrap();
                cpu() - t
            })
            .collect();
        let first = times[0];
        times.sort_by(f64::total_cmp);
        println!("{} first {:.1} min {:.2} ms", c[0], first, times[0]);
    }
}
