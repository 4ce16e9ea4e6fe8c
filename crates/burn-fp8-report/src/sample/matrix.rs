//! Sampled elements of an operand.

/// The elements of a matrix, or those where some of its rows and columns cross, with the amax of whole rows and columns.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixSample {
    shape: [usize; 2],
    values: Vec<f32>,
    amax: [Vec<f32>; 2],
}

/// Rows or columns of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Rows.
    Rows,
    /// Columns.
    Columns,
}

impl MatrixSample {
    /// A whole matrix, row by row.
    ///
    /// # Panics
    /// Where the number of values is not `rows × columns`.
    pub fn whole(values: Vec<f32>, [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(values.len(), rows * columns, "{rows} rows of {columns} columns");
        let mut amax = [vec![0f32; rows], vec![0f32; columns]];
        let [by_row, by_column] = &mut amax;
        for (row, values) in by_row.iter_mut().zip(values.chunks(columns.max(1))) {
            for (column, x) in by_column.iter_mut().zip(values) {
                let magnitude = if x.is_finite() { x.abs() } else { 0.0 };
                *row = row.max(magnitude);
                *column = column.max(magnitude);
            }
        }
        Self { shape: [rows, columns], values, amax }
    }

    /// Some rows and columns of a matrix, with the largest magnitudes of those rows and columns as a whole.
    ///
    /// Where such a magnitude is not finite, that of the sampled elements is taken.
    ///
    /// # Panics
    /// Where numbers of values or magnitudes do not go with the shape.
    pub fn sampled(values: Vec<f32>, shape: [usize; 2], amax: [Vec<f32>; 2]) -> Self {
        let mut matrix = Self::whole(values, shape);
        for (own, whole) in matrix.amax.iter_mut().zip(amax) {
            assert_eq!(own.len(), whole.len(), "a magnitude for each row and each column");
            for (own, whole) in own.iter_mut().zip(whole) {
                if whole.is_finite() {
                    *own = own.max(whole);
                }
            }
        }
        matrix
    }

    /// A matrix of the same shape, whole.
    pub(crate) fn with_values(&self, values: Vec<f32>) -> Self {
        Self::whole(values, self.shape)
    }

    /// The elements, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// How many rows or columns there are.
    pub fn count(&self, lines: Lines) -> usize {
        self.shape[lines as usize]
    }

    /// The amax of each row or column.
    pub(crate) fn amaxes(&self, lines: Lines) -> &[f32] {
        &self.amax[lines as usize]
    }

    /// A row or a column.
    pub(crate) fn line(&self, lines: Lines, index: usize) -> Vec<f32> {
        let [_, columns] = self.shape;
        match lines {
            Lines::Rows => self.values[index * columns..][..columns].to_vec(),
            Lines::Columns => self.values.iter().skip(index).step_by(columns).copied().collect(),
        }
    }
}

/// `count` of `0..len` in ascending order, one from each of `count` equal parts of the range.
///
/// Which of a part is the same every time, but not the same in every part: a fixed distance would meet only one place of every head or
/// channel group.
pub fn spread(len: usize, count: usize) -> Vec<usize> {
    if count >= len {
        return (0..len).collect();
    }
    (0..count)
        .map(|part| {
            let (start, end) = (part * len / count, (part + 1) * len / count);
            // The finalizer of splitmix64.
            let mut z = (part as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            start + ((z ^ (z >> 31)) % (end - start) as u64) as usize
        })
        .collect()
}

/// How many of M, N and K to take, so that none of the matrices M×K, K×N and M×N has more than `max_elements` elements: all where
/// they fit, else the longest dimension of what does not fit is shortened.
pub fn sizes([m, n, k]: [usize; 3], max_elements: usize) -> [usize; 3] {
    let mut sizes = [m, n, k];
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        if sizes[a].saturating_mul(sizes[b]) > max_elements {
            let side = max_elements.isqrt().max(1);
            let (long, short) = if sizes[a] > sizes[b] { (a, b) } else { (b, a) };
            // Both are long, or one is and the other fills it.
            sizes[short] = sizes[short].min(side);
            sizes[long] = sizes[long].min((max_elements / sizes[short]).max(1));
        }
    }
    sizes
}
