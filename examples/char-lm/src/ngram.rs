//! What a count of characters achieves without a network: the bar that a model has to clear.

use crate::run::mean;

/// Cross-entropy in nats a character of pairs of characters under the add-one smoothed bigram counts of `train`, over `vocabulary`
/// characters: −mean ln((count(a, b) + 1) / (count(a, ·) + vocabulary)). NaN for no pairs.
pub fn bigram_loss(
    train: &[u8],
    valid: impl IntoIterator<Item = [u8; 2]>,
    vocabulary: usize,
) -> f64 {
    let mut pairs = vec![1u64; vocabulary * vocabulary];
    for pair in train.windows(2) {
        pairs[usize::from(pair[0]) * vocabulary + usize::from(pair[1])] += 1;
    }
    let rows: Vec<u64> = pairs.chunks_exact(vocabulary).map(|row| row.iter().sum()).collect();
    mean(valid.into_iter().map(|pair| {
        let first = usize::from(pair[0]);
        let pair = pairs[first * vocabulary + usize::from(pair[1])];
        (rows[first] as f64 / pair as f64).ln()
    }))
}

/// Cross-entropy in nats a character of characters under the add-one smoothed frequencies of `train`. NaN for none.
pub fn unigram_loss(train: &[u8], valid: impl IntoIterator<Item = u8>, vocabulary: usize) -> f64 {
    let mut counts = vec![1u64; vocabulary];
    for &character in train {
        counts[usize::from(character)] += 1;
    }
    let total = counts.iter().sum::<u64>() as f64;
    mean(valid.into_iter().map(|character| (total / counts[usize::from(character)] as f64).ln()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_by_hand() {
        // Pairs of 0101: 01 twice, 10 once. With one added, of vocabulary 2: row 0 is 1, 3; row 1 is 2, 1.
        let loss = bigram_loss(&[0, 1, 0, 1], [[0, 1], [1, 1]], 2);
        assert!((loss - ((4.0f64 / 3.0).ln() + 3.0f64.ln()) / 2.0).abs() < 1e-12);
        // Frequencies of 0 and 1, with one added: 3 and 2 of 5.
        let loss = unigram_loss(&[0, 0, 1], [1], 2);
        assert!((loss - 2.5f64.ln()).abs() < 1e-12);
    }
}
