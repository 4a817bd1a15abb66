//! A problem of a VM.

use crate::api::diagnosis;
use crate::api::vm::conditions::{ConditionReason, READY, ReadyReason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use strum::EnumMessage;

/// A problem of a VM. `R` is the type of its reason.
pub type Diagnosis<R = ReadyReason> = diagnosis::Diagnosis<R>;

impl Diagnosis {
    /// A problem with the next step from the documentation of its reason. `name` is the name of the object with the problem.
    #[must_use]
    pub fn documented(reason: ReadyReason, problem: &str, name: &str) -> Self {
        let next_step = reason.get_message().unwrap_or_default().replace("{}", name);
        Self::new(reason, problem, next_step)
    }
}

impl From<Diagnosis> for Diagnosis<ConditionReason> {
    fn from(diagnosis: Diagnosis) -> Self {
        Self {
            reason: diagnosis.reason.into(),
            subject: diagnosis.subject,
            problem: diagnosis.problem,
            next_step: diagnosis.next_step,
        }
    }
}

/// The default condition [`READY`] of the CRD: no operator has seen the VM.
#[must_use]
pub fn unseen() -> Condition {
    let problem =
        Diagnosis::documented(ReadyReason::NoOperator, "no operator has seen this VM", "");
    Condition {
        type_: READY.to_owned(),
        status: "Unknown".to_owned(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        reason: problem.reason.as_str().to_owned(),
        message: problem.to_string(),
    }
}
