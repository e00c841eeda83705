//! Outcomes that a scenario expects: of the peers that stay, and of those that join late.

/// How a run ends for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SurvivorOutcome {
    /// After the last step.
    Finish,
    /// It does not end: too few members are left to agree on a view, and they wait for others to return.
    Wait,
}

/// Whether late joiners become members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JoinOutcome {
    /// They become members.
    Join,
    /// They are refused, with the reason.
    Refused,
    /// Both are allowed.
    Any,
}

impl SurvivorOutcome {
    /// The outcome as text: what peers do.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Wait => "wait for ever",
        }
    }
}

impl JoinOutcome {
    /// The outcome as text: what happens to joiners.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Join => "become a member",
            Self::Refused => "be refused",
            Self::Any => "come or not",
        }
    }
}
