//! What worker threads are asked to do, and its encoding in one 64-bit word: a task is published
//! through a single atomic variable.

/// What all worker threads are asked to do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Move what this thread writes in every round to memory that it has allocated itself.
    Reallocate,
    /// Copy the first thread's server.
    CopyServer,
    /// Compute metrics.
    Evaluate,
    /// Compute the messages of nodes without a server.
    Speak,
    /// Let nodes without a server hear their neighbours.
    Hear,
    /// Compute the messages of a block, and add them to the server.
    Messages(ClientBlock),
    /// The same on the first thread alone: the copies of the other threads become outdated.
    MessagesAlone(ClientBlock),
}

/// One block of clients in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientBlock {
    /// Blocks so far in the run, this one included: no two in a row have the same number.
    pub(super) number: u32,
    /// Which [`BLOCK`](super::BLOCK) clients, in the order of clients.
    pub(super) index: u32,
}

impl Task {
    /// From the lowest bit: two bits for the kind, 30 for the block's index, 32 for its number.
    pub(super) fn to_word(self) -> u64 {
        let word = |kind: u64, block: ClientBlock| {
            kind | u64::from(block.index) << 2 | u64::from(block.number) << 32
        };
        let without_block = |index: u32| word(0, ClientBlock { number: 0, index });
        match self {
            Task::Reallocate => without_block(0),
            Task::CopyServer => without_block(1),
            Task::Evaluate => without_block(2),
            Task::Speak => without_block(3),
            Task::Hear => without_block(4),
            Task::Messages(block) => word(1, block),
            Task::MessagesAlone(block) => word(2, block),
        }
    }

    pub(super) fn from_word(word: u64) -> Self {
        let block = ClientBlock {
            number: (word >> 32) as u32,
            index: word as u32 >> 2,
        };
        match (word & 3, block.index) {
            (0, 0) => Task::Reallocate,
            (0, 1) => Task::CopyServer,
            (0, 2) => Task::Evaluate,
            (0, 3) => Task::Speak,
            (0, _) => Task::Hear,
            (1, _) => Task::Messages(block),
            _ => Task::MessagesAlone(block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_survive_their_encoding() {
        let block = ClientBlock {
            number: u32::MAX,
            index: (1 << 30) - 1,
        };
        for task in [
            Task::Reallocate,
            Task::CopyServer,
            Task::Evaluate,
            Task::Speak,
            Task::Hear,
            Task::Messages(block),
            Task::MessagesAlone(block),
        ] {
            assert_eq!(Task::from_word(task.to_word()), task);
        }
    }
}
