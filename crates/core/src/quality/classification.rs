//! Quality of answers that are classes.
//!
//! With `M[t][p]` records of true class `t` that were answered by `p` (the confusion matrix), over
//! classes `c` that occur:
//!
//! ```text
//! accuracy   sum_c M[c][c] / rows             recall_c     M[c][c] / sum_p M[c][p]
//! balanced   mean over c of recall_c          precision_c  M[c][c] / sum_t M[t][c]
//! log loss   mean of -ln p(true class)        auc          see `ranking`; mean over c of c against
//!                                                          the rest where there are more than two
//! ```
//!
//! **Calibration.** A model is calibrated if of the answers that it gives with probability `q` a
//! share `q` is right. Answers are put into bins of equal width by the probability of the class
//! that was answered; the expected calibration error is the mean distance between a bin's mean
//! probability and its share of right answers, weighted by the bin's records.

use super::ranking::{self, Roc};

/// Bins of the probability of the answer, over [0, 1].
pub const CALIBRATION_BINS: usize = 15;

/// What was found; classes are indexed by their numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Classification {
    /// How many records of the class in the row were answered by the class in the column.
    pub confusion: Vec<Vec<u64>>,
    /// The mean of `-ln p` of the true class; `None` where the model gives no probabilities, as
    /// with everything below.
    pub log_loss: Option<f64>,
    /// The area under the ROC curve of every class against the rest; `None` for a class that all
    /// records have, or none.
    pub class_auc: Vec<Option<f64>>,
    /// The ROC curve of two classes, class 1 being positive.
    pub roc: Option<Roc>,
    /// The bins that have records, by rising probability.
    pub calibration: Vec<CalibrationBin>,
}

/// Answers that were given with similar probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationBin {
    /// The mean probability of the answers.
    pub confidence: f64,
    /// The share of them that is right.
    pub accuracy: f64,
    /// How many they are.
    pub records: u64,
}

impl Classification {
    /// Of true classes and answers below `classes`; `scores` are log-probabilities, one per class
    /// for every record.
    ///
    /// # Panics
    /// If a class is not below `classes`, or there are not as many answers or scores as records.
    pub fn new(labels: &[u32], answers: &[u32], scores: Option<&[f32]>, classes: usize) -> Self {
        assert_eq!(labels.len(), answers.len(), "one answer per record");
        let mut confusion = vec![vec![0; classes]; classes];
        for (&label, &answer) in labels.iter().zip(answers) {
            confusion[label as usize][answer as usize] += 1;
        }
        let mut found = Self {
            confusion,
            log_loss: None,
            class_auc: vec![None; classes],
            roc: None,
            calibration: Vec::new(),
        };
        if let Some(scores) = scores {
            assert_eq!(scores.len(), labels.len() * classes, "a score per class");
            found.judge(labels, answers, scores);
        }
        found
    }

    /// What the scores add.
    fn judge(&mut self, labels: &[u32], answers: &[u32], scores: &[f32]) {
        let classes = self.classes();
        let rows = || labels.iter().zip(scores.chunks_exact(classes));
        let losses = rows().map(|(&label, scores)| -f64::from(scores[label as usize]));
        self.log_loss = Some(losses.sum::<f64>() / labels.len() as f64);
        let against = |class: usize| {
            rows().map(move |(&label, scores)| (scores[class], label as usize == class))
        };
        if classes == 2 {
            self.class_auc = vec![ranking::auc(against(1)); 2];
            self.roc = ranking::roc(against(1));
        } else {
            self.class_auc = (0..classes).map(|c| ranking::auc(against(c))).collect();
        }
        let mut bins = [(0.0, 0u64, 0u64); CALIBRATION_BINS];
        for ((&label, scores), &answer) in rows().zip(answers) {
            let confidence = libm::exp(f64::from(scores[answer as usize]));
            if !confidence.is_finite() {
                continue;
            }
            let bin = (confidence * CALIBRATION_BINS as f64) as usize;
            let bin = &mut bins[bin.min(CALIBRATION_BINS - 1)];
            bin.0 += confidence;
            bin.1 += u64::from(label == answer);
            bin.2 += 1;
        }
        let filled = bins.iter().filter(|(_, _, records)| *records > 0);
        let bin = |&(confidence, right, records): &(f64, u64, u64)| CalibrationBin {
            confidence: confidence / records as f64,
            accuracy: right as f64 / records as f64,
            records,
        };
        self.calibration = filled.map(bin).collect();
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.confusion.len()
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        self.confusion.iter().flatten().sum()
    }

    /// How many records have a class.
    pub fn occurrences(&self, class: usize) -> u64 {
        self.confusion[class].iter().sum()
    }

    /// The share of right answers.
    pub fn accuracy(&self) -> Option<f64> {
        let right = (0..self.classes()).map(|class| self.confusion[class][class]);
        share(right.sum(), self.records())
    }

    /// Of the records of a class, the share that was found; `None` if there are none.
    pub fn recall(&self, class: usize) -> Option<f64> {
        share(self.confusion[class][class], self.occurrences(class))
    }

    /// Of the answers with a class, the share that was right; `None` if there are none.
    pub fn precision(&self, class: usize) -> Option<f64> {
        let answers = self.confusion.iter().map(|row| row[class]).sum();
        share(self.confusion[class][class], answers)
    }

    /// The mean recall of the classes that occur: the accuracy, if all were equally common.
    pub fn balanced_accuracy(&self) -> Option<f64> {
        mean((0..self.classes()).filter_map(|class| self.recall(class)))
    }

    /// The area under the ROC curve; of more than two classes the mean of each against the rest.
    pub fn auc(&self) -> Option<f64> {
        mean(self.class_auc.iter().copied().flatten())
    }

    /// The expected calibration error; `None` without probabilities.
    pub fn calibration_error(&self) -> Option<f64> {
        let all: u64 = self.calibration.iter().map(|bin| bin.records).sum();
        let distance =
            |bin: &CalibrationBin| bin.records as f64 * (bin.confidence - bin.accuracy).abs();
        let sum: f64 = self.calibration.iter().map(distance).sum();
        (all > 0).then(|| sum / all as f64)
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for value in values {
        sum += value;
        count += 1;
    }
    (count > 0).then(|| sum / f64::from(count))
}
