//! The neighbouring relation.

/// Which two data sets count as neighbours. Every cost is stated under one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adjacency {
    /// One record is replaced by another (the paper's "differ by one entry").
    ReplaceOne,
    /// One record is replaced by a null record whose gradient is zero; the number of records is
    /// public and stays.
    ZeroOut,
}

words!(
    Adjacency,
    "adjacency",
    ReplaceOne = "replace-one",
    ZeroOut = "zero-out",
);

impl Adjacency {
    /// How many times the shift of one record lies between neighbours: two records may pull in
    /// opposite directions, a record and nothing cannot.
    pub(crate) fn distance(self) -> f64 {
        match self {
            Self::ZeroOut => 1.0,
            Self::ReplaceOne => 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back() {
        assert_eq!(Adjacency::ReplaceOne.to_string(), "replace-one");
        assert_eq!(Adjacency::ZeroOut.to_string(), "zero-out");
        for &adjacency in Adjacency::ALL {
            assert_eq!(adjacency.to_string().parse(), Ok(adjacency));
        }
        let error = "zero_out".parse::<Adjacency>().unwrap_err().to_string();
        let expected = "no adjacency is called `zero_out`; there are replace-one, zero-out";
        assert_eq!(error, expected);
    }
}
