//! Curves with fewer points that look the same.
//!
//! Rows are cut into equal buckets, and of each bucket the rows with the smallest and the largest
//! finite value of every column stay, in their order. So a spike of one row survives any thinning,
//! and so do the first and the last row. Cost: one pass per column.
//! Taking every n-th row instead would be simpler, and would hide exactly what one looks for.

/// Which of `rows` rows to keep so that at most `limit` remain (at least the ends, and one bucket).
///
/// `columns` give the drawn values of a row; values that are not finite are passed over.
pub(super) fn keep(rows: usize, limit: usize, columns: &[&dyn Fn(usize) -> f64]) -> Vec<usize> {
    if rows <= limit {
        return (0..rows).collect();
    }
    let buckets = (limit.saturating_sub(2) / (2 * columns.len()).max(1)).max(1);
    let mut kept = vec![0, rows - 1];
    for bucket in 0..buckets {
        let (start, end) = (rows * bucket / buckets, rows * (bucket + 1) / buckets);
        let before = kept.len();
        for column in columns {
            let finite = (start..end).filter(|row| column(*row).is_finite());
            let by_value = |a: &usize, b: &usize| column(*a).total_cmp(&column(*b));
            kept.extend(finite.clone().min_by(by_value));
            kept.extend(finite.max_by(by_value));
        }
        if kept.len() == before {
            // Nothing to draw here: one row stays so that the gap is a gap.
            kept.extend((start..end).next());
        }
    }
    kept.sort_unstable();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tables_are_untouched() {
        assert_eq!(keep(5, 5, &[&|_| 0.0]), vec![0, 1, 2, 3, 4]);
        assert!(keep(0, 5, &[]).is_empty());
    }

    #[test]
    fn ends_and_every_bucket_extreme_stay_within_the_limit() {
        let rows = 10_007;
        // A quiet curve with one high and one low spike, and a second column that is mostly absent.
        let first = |row: usize| match row {
            4_321 => 50.0,
            7_777 => -50.0,
            _ => (row as f64 * 0.01).sin(),
        };
        let second = |row: usize| {
            if row % 1000 == 17 {
                row as f64
            } else {
                f64::NAN
            }
        };
        let kept = keep(rows, 400, &[&first, &second]);
        assert!(kept.len() <= 400 && kept.len() > 190, "{}", kept.len());
        assert!(kept.windows(2).all(|pair| pair[0] < pair[1]));
        for row in [0, 4_321, 7_777, 9_017, rows - 1] {
            assert!(kept.contains(&row), "row {row} is lost");
        }
        // The twin: every bucket's range, from a plain loop over all rows.
        for bucket in 0..99 {
            let (start, end) = (rows * bucket / 99, rows * (bucket + 1) / 99);
            let range = |items: &mut dyn Iterator<Item = usize>| {
                items
                    .map(first)
                    .fold((f64::MAX, f64::MIN), |(low, high), value| {
                        (low.min(value), high.max(value))
                    })
            };
            let all = range(&mut (start..end));
            let thin = range(
                &mut kept
                    .iter()
                    .copied()
                    .filter(|row| (start..end).contains(row)),
            );
            assert_eq!(all, thin, "bucket {bucket}");
        }
    }

    #[test]
    fn columns_without_values_leave_gaps() {
        let kept = keep(1000, 12, &[&|_| f64::NAN]);
        assert_eq!(kept, vec![0, 200, 400, 600, 800, 999]);
    }
}
