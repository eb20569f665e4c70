//! What the threads of a team are asked to do, and how it is said in one word.

/// What a team is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Take a seat.
    Settle,
    /// Catch up with the first thread's server.
    Copy,
    /// Metrics.
    Metrics,
    /// The messages of a block, and what the server makes of them.
    Messages(Block),
    /// The same by the first thread alone, while the others rest and fall behind.
    Alone(Block),
}

/// [`BLOCK`](super::BLOCK) clients or fewer, in the order of blocks, for the `number`-th time that messages are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) number: u32,
    pub(super) index: u32,
}

impl Job {
    /// As one word, for the signal that threads wait for: two bits for the kind, the block's index, its number.
    pub(super) fn to_word(self) -> u64 {
        let word = |kind: u64, block: Block| {
            kind | u64::from(block.index) << 2 | u64::from(block.number) << 32
        };
        let plain = |index: u32| word(0, Block { number: 0, index });
        match self {
            Job::Settle => plain(0),
            Job::Copy => plain(1),
            Job::Metrics => plain(2),
            Job::Messages(block) => word(1, block),
            Job::Alone(block) => word(2, block),
        }
    }

    pub(super) fn from_word(word: u64) -> Self {
        let block = Block {
            number: (word >> 32) as u32,
            index: word as u32 >> 2,
        };
        match (word & 3, block.index) {
            (0, 0) => Job::Settle,
            (0, 1) => Job::Copy,
            (0, _) => Job::Metrics,
            (1, _) => Job::Messages(block),
            _ => Job::Alone(block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_words() {
        let block = Block {
            number: u32::MAX,
            index: (1 << 30) - 1,
        };
        for job in [
            Job::Settle,
            Job::Copy,
            Job::Metrics,
            Job::Messages(block),
            Job::Alone(block),
        ] {
            assert_eq!(Job::from_word(job.to_word()), job);
        }
    }
}
