//! Rows that belong together, by a column of their table: those of a client, or those about a
//! person.

/// Which group every row belongs to. Groups stand in the order of their names, numbers by value, so
/// that the order of rows does not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    names: Vec<String>,
    of_rows: Vec<u32>,
}

impl Grouping {
    /// Of groups with these names, in any order, and the place of every row's among them.
    pub(crate) fn new(names: Vec<String>, of_rows: Vec<u32>) -> Grouping {
        let mut order: Vec<usize> = (0..names.len()).collect();
        match numbers(&names) {
            Some(values) => order.sort_by(|&a, &b| values[a].total_cmp(&values[b])),
            None => order.sort_by_key(|&place| &names[place]),
        }
        let mut places = vec![0u32; names.len()];
        for (place, &old) in order.iter().enumerate() {
            places[old] = place as u32;
        }
        let of_rows = of_rows.iter().map(|&old| places[old as usize]).collect();
        Grouping {
            names: order.iter().map(|&old| names[old].clone()).collect(),
            of_rows,
        }
    }

    /// What the groups are called.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The group of every row.
    pub fn of_rows(&self) -> &[u32] {
        &self.of_rows
    }

    /// Every group's rows, in their order; groups without any are left out.
    pub fn rows(&self) -> Vec<Vec<u32>> {
        let mut rows = vec![Vec::new(); self.names.len()];
        for (row, &group) in self.of_rows.iter().enumerate() {
            rows[group as usize].push(row as u32);
        }
        rows.retain(|rows| !rows.is_empty());
        rows
    }

    /// The groups of these rows alone, in this order.
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn select(&self, rows: impl IntoIterator<Item = u32>) -> Grouping {
        let rows = rows.into_iter();
        Grouping {
            names: self.names.clone(),
            of_rows: rows.map(|row| self.of_rows[row as usize]).collect(),
        }
    }
}

/// The values of names that are all numbers.
fn numbers(names: &[String]) -> Option<Vec<f64>> {
    let values = names.iter().map(|name| name.parse::<f64>().ok());
    values
        .collect::<Option<Vec<f64>>>()
        .filter(|values| values.iter().all(|v| v.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_do_not_depend_on_the_order_of_rows() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let one = Grouping::new(names(&["10", "9", "b"]), vec![0, 1, 2, 1]);
        assert_eq!(one.names(), ["10", "9", "b"]);
        assert_eq!(one.rows(), [vec![0], vec![1, 3], vec![2]]);
        let other = Grouping::new(names(&["b", "9", "10"]), vec![2, 1, 0, 1]);
        assert_eq!(one, other);
        assert_eq!(one.select([1, 3, 2]).rows(), [vec![0, 1], vec![2]]);
        let numbers = Grouping::new(names(&["10", "9", "-1"]), vec![0, 1, 2]);
        assert_eq!(numbers.names(), ["-1", "9", "10"]);
    }
}
