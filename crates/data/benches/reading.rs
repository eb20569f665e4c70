//! Seconds that sources take to be read, the best of three: `cargo bench -p soteriafl-data --bench
//! reading -- csv:FILE parquet:FILE`, each with the schema of `soteria schema draft` if `--schema`
//! comes first. `benches/against_pandas.py` makes files and compares.

use std::sync::Arc;
use std::time::Instant;

use soteriafl_data::{DataDirectories, DataError, Schema, Source};

fn main() -> Result<(), DataError> {
    let mut by_schema = false;
    // `cargo bench` adds a flag of its own.
    for argument in std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
    {
        if argument == "--schema" {
            by_schema = true;
            continue;
        }
        let source: Source = argument.parse()?;
        let mut schema = Schema::default();
        if by_schema {
            let drafted = source.draft_schema()?.schema();
            schema.table = drafted.ok().map(Arc::new);
        }
        let mut best = f64::INFINITY;
        let mut rows = 0;
        for _ in 0..3 {
            let start = Instant::now();
            let loaded = source.load_as(&schema, &DataDirectories::default(), 0)?;
            best = best.min(start.elapsed().as_secs_f64());
            rows = loaded.train.rows();
        }
        println!("{best:.4} {rows} {argument}");
    }
    Ok(())
}
