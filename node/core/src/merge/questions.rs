//! Questions to other branches: a message that ends a branch counts only as the answer to a recent one.

use std::collections::VecDeque;
use std::time::Duration;

use peergrad_protocol::Instant;

/// The questions that were asked recently: only their answers count.
#[derive(Default)]
pub(super) struct Questions {
    /// When they were asked, oldest first. The time of a question is also its number.
    asked: VecDeque<Instant>,
}

impl Questions {
    /// The number of a question that is asked now.
    pub(super) fn ask(&mut self, now: Instant) -> u64 {
        self.asked.retain(|asked| now.since(*asked) <= ANSWER_MAX);
        if self.asked.back() != Some(&now) {
            self.asked.push_back(now);
        }
        now.0
    }

    /// Whether this number belongs to a question that was asked recently.
    pub(super) fn is_answer(&self, now: Instant, question: u64) -> bool {
        self.asked.iter().any(|asked| asked.0 == question && now.since(*asked) <= ANSWER_MAX)
    }

    /// Whether this number belongs to a question that is still remembered.
    pub(super) fn is_known(&self, question: u64) -> bool {
        self.asked.iter().any(|asked| asked.0 == question)
    }
}

/// The age from which an answer no longer counts.
const ANSWER_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_only_for_a_limited_time() {
        let (mut questions, asked) = (Questions::default(), Instant(7));
        let question = questions.ask(asked);
        assert!(questions.is_answer(asked.after(ANSWER_MAX), question));
        let late = asked.after(ANSWER_MAX + Duration::from_millis(1));
        assert!(!questions.is_answer(late, question) && questions.is_known(question));
        assert!(!questions.is_answer(asked, question + 1));
    }

    #[test]
    fn old_questions_are_forgotten_when_another_is_asked() {
        let mut questions = Questions::default();
        let first = questions.ask(Instant(0));
        assert_eq!(questions.ask(Instant(0)), first, "it is the same question");
        questions.ask(Instant(0).after(2 * ANSWER_MAX));
        assert!(!questions.is_known(first));
    }
}
