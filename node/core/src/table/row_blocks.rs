//! Row blocks: the numbers of a chunk's rows, by place.
//!
//! The rows are in small blocks, which stay where they are in memory. A growing vector would be copied again and again; thousands of them
//! that grow in turn would leave holes of all sizes in the heap.

/// Memory for rows with the same count of numbers.
#[derive(Clone, Debug)]
pub(super) struct RowBlocks {
    /// The count of numbers of each row.
    stride: usize,
    /// The count of rows of each block.
    block_rows: usize,
    /// The blocks, of `block_rows` rows each.
    blocks: Vec<Box<[f32]>>,
}

impl RowBlocks {
    /// No rows yet; each will have `stride` numbers.
    pub(super) fn new(stride: usize) -> Self {
        let block_rows = (BLOCK_VALUES / stride).clamp(1, BLOCK_ROWS_MAX);
        Self { stride, block_rows, blocks: Vec::new() }
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Makes room for the row at this place, which follows all others. The row is zero.
    pub(super) fn allocate(&mut self, place: usize) {
        if place == self.blocks.len() * self.block_rows {
            self.blocks.push(vec![0.0; self.block_rows * self.stride].into_boxed_slice());
        }
    }

    pub(super) fn row(&self, place: usize) -> &[f32] {
        let start = place % self.block_rows * self.stride;
        &self.blocks[place / self.block_rows][start..start + self.stride]
    }

    pub(super) fn row_mut(&mut self, place: usize) -> &mut [f32] {
        let start = place % self.block_rows * self.stride;
        &mut self.blocks[place / self.block_rows][start..start + self.stride]
    }
}

/// The numbers of a block, unless one row has more. Few, since a chunk may have few rows, and enough to make finding a block cheap in
/// comparison.
const BLOCK_VALUES: usize = 128;
/// The most rows of a block.
const BLOCK_ROWS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_values_while_others_are_added() {
        for stride in [1, 3, 100, 128, 500] {
            let mut row_blocks = RowBlocks::new(stride);
            for place in 0..100 {
                row_blocks.allocate(place);
                assert_eq!(row_blocks.row(place), vec![0.0; stride]);
                row_blocks.row_mut(place).fill(place as f32);
            }
            assert!((0..100).all(|place| row_blocks.row(place) == vec![place as f32; stride]), "{stride}");
        }
    }
}
