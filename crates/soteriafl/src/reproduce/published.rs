//! The figures of the paper: their settings, and what the authors' algorithms give with them.
//!
//! Step sizes, rounds and batches are those behind the published figures. The bands were measured
//! from the authors' algorithms in double precision (ten seeds on a9a, three on MNIST; mean and
//! sample standard deviation) for the figures at a9a epsilon 1 and 5 and MNIST epsilon 1 and 2.

/// The probability that may escape, throughout.
pub const DELTA: f64 = 1e-3;

/// The authors' start on a9a, one number per line.
pub const A9A_START: &str = include_str!("../../../../vectors/a9a-start.csv");

/// `2 sqrt(32560) / s` with the largest singular value `s` of the a9a matrix: the published
/// set-up's factor of every feature. A proved run takes it as the constant it has become.
pub const A9A_FACTOR: f64 = 0.741531;

/// Which problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Logistic regression with the nonconvex regularizer, figures 1 to 3.
    A9a,
    /// The network with 64 hidden units, figures 4 to 8.
    Mnist,
}

impl Task {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Task::A9a => "a9a",
            Task::Mnist => "mnist",
        }
    }

    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Task::A9a => "a9a",
            Task::Mnist => "MNIST",
        }
    }

    /// The gradient bound `G`.
    pub fn clip(self) -> f64 {
        match self {
            Task::A9a => 0.5,
            Task::Mnist => 1.0,
        }
    }

    /// Records `m` of a client.
    pub fn records(self) -> u64 {
        match self {
            Task::A9a => 3256,
            Task::Mnist => 6000,
        }
    }

    /// Parameters.
    pub fn dimension(self) -> u64 {
        match self {
            Task::A9a => 124,
            Task::Mnist => 50_890,
        }
    }

    /// The batch of SVRG, `m^(2/3)/4`.
    pub fn svrg_batch(self) -> u32 {
        match self {
            Task::A9a => 54,
            Task::Mnist => 82,
        }
    }
}

/// The five algorithms of every figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SGD, nothing compressed.
    LdpSgd,
    /// SVRG, nothing compressed.
    LdpSvrg,
    /// SGD, compressed directly.
    CdpSgd,
    /// SGD, compressed with a shift.
    SoteriaSgd,
    /// SVRG, compressed with a shift.
    SoteriaSvrg,
}

/// In the order of the tables.
pub const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::LdpSgd,
    Algorithm::LdpSvrg,
    Algorithm::CdpSgd,
    Algorithm::SoteriaSgd,
    Algorithm::SoteriaSvrg,
];

impl Algorithm {
    /// Its name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::LdpSgd => "LDP-SGD",
            Algorithm::LdpSvrg => "LDP-SVRG",
            Algorithm::CdpSgd => "CDP-SGD",
            Algorithm::SoteriaSgd => "SoteriaFL-SGD",
            Algorithm::SoteriaSvrg => "SoteriaFL-SVRG",
        }
    }

    /// Its preset.
    pub fn preset(self) -> String {
        self.name().to_lowercase()
    }

    /// Whether it is one of the two with snapshots.
    pub fn is_svrg(self) -> bool {
        matches!(self, Algorithm::LdpSvrg | Algorithm::SoteriaSvrg)
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// One figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Its number.
    pub figure: u32,
    /// Its problem.
    pub task: Task,
    /// Its epsilon, as the paper names it.
    pub epsilon: f64,
    /// Rounds `T`.
    pub rounds: u32,
    sgd_batch: u32,
    step_sizes: [f64; 5],
}

impl Setup {
    /// The tuned step size of an algorithm.
    pub fn step_size(&self, algorithm: Algorithm) -> f64 {
        self.step_sizes[algorithm.index()]
    }

    /// The batch of an algorithm.
    pub fn batch(&self, algorithm: Algorithm) -> u32 {
        if algorithm.is_svrg() {
            self.task.svrg_batch()
        } else {
            self.sgd_batch
        }
    }

    /// Values that a client sends in a compressed run: `k = floor(d/20)` a round.
    pub fn values(&self) -> u64 {
        self.task.dimension() / 20 * u64::from(self.rounds)
    }

    /// Bits that the ten clients of a compressed run send, 64 for each value.
    pub fn bits(&self) -> u64 {
        64 * 10 * self.values()
    }

    /// The measure beside utility: loss on a9a, where accuracy is that of the larger class for
    /// everybody, and accuracy on MNIST.
    pub fn shows_accuracy(&self) -> bool {
        self.task == Task::Mnist
    }
}

const fn setup(
    figure: u32,
    task: Task,
    epsilon: f64,
    rounds: u32,
    sgd_batch: u32,
    step_sizes: [f64; 5],
) -> Setup {
    Setup {
        figure,
        task,
        epsilon,
        rounds,
        sgd_batch,
        step_sizes,
    }
}

/// All figures; step sizes in the order of [`ALGORITHMS`].
pub const FIGURES: [Setup; 8] = [
    setup(1, Task::A9a, 1.0, 25, 10, [1.0, 1.0, 0.6, 0.6, 0.6]),
    setup(2, Task::A9a, 5.0, 100, 51, [1.0, 1.0, 0.1, 0.3, 0.3]),
    setup(3, Task::A9a, 10.0, 150, 103, [1.0, 1.0, 0.3, 0.6, 0.6]),
    setup(4, Task::Mnist, 1.0, 150, 128, [1.0, 1.0, 0.3, 0.6, 0.3]),
    setup(5, Task::Mnist, 2.0, 200, 128, [1.0, 1.0, 0.3, 0.6, 0.3]),
    setup(6, Task::Mnist, 4.0, 300, 128, [1.0, 1.0, 0.6, 1.0, 0.6]),
    setup(7, Task::Mnist, 8.0, 500, 128, [1.0, 1.0, 0.6, 1.0, 0.6]),
    setup(8, Task::Mnist, 16.0, 1000, 128, [1.0, 1.0, 0.6, 1.0, 0.6]),
];

/// A mean and a standard deviation over seeds.
pub type MeanAndDeviation = (f64, f64);

/// What the authors' algorithms give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Seeds behind it.
    pub seeds: usize,
    /// The mean of `|grad f|^2` over the rounds.
    pub utility: MeanAndDeviation,
    /// The training loss at the end.
    pub loss: MeanAndDeviation,
    /// The test accuracy at the end.
    pub accuracy: MeanAndDeviation,
}

/// The band of an algorithm in a figure, where it was measured.
pub fn band(figure: u32, algorithm: Algorithm) -> Option<Band> {
    let at = algorithm.index();
    let (seeds, row) = match figure {
        1 => (10, A9A_1[at]),
        2 => (10, A9A_5[at]),
        4 => (3, MNIST_1[at]),
        5 => (3, MNIST_2[at]),
        _ => return None,
    };
    let [utility, utility_sd, loss, loss_sd, accuracy, accuracy_sd] = row;
    Some(Band {
        seeds,
        utility: (utility, utility_sd),
        loss: (loss, loss_sd),
        accuracy: (accuracy, accuracy_sd),
    })
}

/// Utility, loss and accuracy, each with its deviation, in the order of [`ALGORITHMS`].
type Bands = [[f64; 6]; 5];

const A9A_1: Bands = [
    [0.1527, 0.0021, 0.6102, 0.0034, 0.7638, 0.0],
    [0.1427, 0.0018, 0.6074, 0.0023, 0.7638, 0.0],
    [0.2487, 0.0188, 0.6912, 0.0368, 0.7638, 0.0],
    [0.2500, 0.0156, 0.6976, 0.0247, 0.7638, 0.0],
    [0.2595, 0.0232, 0.7484, 0.0347, 0.7638, 0.0],
];
const A9A_5: Bands = [
    [0.0912, 0.0004, 0.6063, 0.0015, 0.7638, 0.0],
    [0.0887, 0.0004, 0.6051, 0.0015, 0.7638, 0.0],
    [0.2300, 0.0095, 0.6187, 0.0088, 0.7638, 0.0],
    [0.1356, 0.0041, 0.6103, 0.0043, 0.7638, 0.0],
    [0.1374, 0.0053, 0.6131, 0.0066, 0.7638, 0.0],
];
const MNIST_1: Bands = [
    [0.1302, 0.0015, 0.4282, 0.0004, 0.8799, 0.0020],
    [0.1492, 0.0119, 0.5488, 0.0216, 0.8365, 0.0122],
    [0.2900, 0.0216, 1.0067, 0.0381, 0.7090, 0.0139],
    [0.2496, 0.0125, 0.8397, 0.0013, 0.7467, 0.0074],
    [0.4142, 0.0366, 1.6396, 0.0980, 0.4627, 0.0311],
];
const MNIST_2: Bands = [
    [0.1074, 0.0010, 0.3548, 0.0011, 0.8985, 0.0009],
    [0.1131, 0.0024, 0.3943, 0.0069, 0.8870, 0.0024],
    [0.2477, 0.0177, 0.7929, 0.0316, 0.7744, 0.0141],
    [0.1825, 0.0115, 0.5882, 0.0041, 0.8271, 0.0021],
    [0.2683, 0.0228, 1.0785, 0.0751, 0.6570, 0.0271],
];

/// What a proved run should reach in a figure, and what the published SoteriaFL-SGD reaches without
/// a proof: training loss on a9a (at most), test accuracy on MNIST (at least).
pub fn goal(figure: u32) -> Option<(f64, f64)> {
    Some(match figure {
        1 => (0.59, 0.698),
        2 => (0.58, 0.610),
        3 => (0.576, 0.611),
        4 => (0.90, 0.747),
        5 => (0.915, 0.827),
        6 => (0.93, 0.886),
        7 => (0.945, 0.917),
        8 => (0.955, 0.941),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use soteriafl_accountant::EstimatorKind;
    use soteriafl_core::theory;

    /// Batches are those of the corollaries, as the set-up says.
    #[test]
    fn batches_follow_the_corollaries() {
        for setup in &FIGURES {
            let records = setup.task.records() as f64;
            let problem = theory::Problem {
                clients: 10.0,
                records,
                dimension: setup.task.dimension() as f64,
                omega: setup.task.dimension() as f64 / (setup.task.dimension() / 20) as f64 - 1.0,
                smoothness: 1.0,
                clip: setup.task.clip(),
                epsilon: setup.epsilon,
                delta: DELTA,
            };
            let svrg = problem.batch(EstimatorKind::Svrg).floor();
            assert_eq!(f64::from(setup.batch(Algorithm::LdpSvrg)), svrg);
            if setup.task == Task::A9a {
                let sgd = problem.batch(EstimatorKind::Sgd).floor();
                assert_eq!(f64::from(setup.batch(Algorithm::LdpSgd)), sgd);
            }
        }
    }
}
