//! The names of steps.

use crate::model::world::{Local, Uid, World};

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    // An operator: 0 or 1.
    Looks { operator: usize, within_pause: bool },
    GivesUpItsRequest(usize),
    HearsTheAnswer(usize),
    IsToldOfTheVm(usize),
    IsToldOfThePod(usize),
    ListsAnew(usize),
    IsKilledAndStarts(usize),
    // The API server.
    CarriesOutARequestOf(usize),
    CarriesOutALateRequestOf(usize),
    // Scheduler, garbage collector, fetch.
    BindsThePodTo(usize),
    EvictsThePod,
    CollectsThePodOfAGoneVm,
    FetchesTheImage,
    // A node.
    SeesThePod(usize),
    StartsQemu { node: usize, pod: Uid },
    TellsThePodsState(usize),
    EndsQemu { node: usize, pod: Uid },
    RemovesThePod(usize),
    QemuCrashes { node: usize, pod: Uid },
    GuestPowersOff { node: usize, pod: Uid },
    CompletesTheImport { node: usize, pod: Uid },
    LosesItsLink(usize),
    GetsItsLinkBack(usize),
    LosesItsPowerForAMoment(usize),
    // People.
    UserStopsOrStartsTheVm,
    UserAsksForARestart,
    UserDeletesTheVm,
    UserMakesAVmOfTheSameName,
    UserSpoilsOrMendsTheSpec,
    UserChangesWhatThePodIsMadeOf,
    SomebodyDeletesThePod,
    AdministratorRemovesThePodByForce,
}

/// A step of an operator.
pub fn of_operator(operator: usize) -> [Step; 10] {
    use Step as S;
    [
        S::Looks {
            operator,
            within_pause: false,
        },
        S::Looks {
            operator,
            within_pause: true,
        },
        S::CarriesOutARequestOf(operator),
        S::CarriesOutALateRequestOf(operator),
        S::HearsTheAnswer(operator),
        S::GivesUpItsRequest(operator),
        S::IsToldOfTheVm(operator),
        S::IsToldOfThePod(operator),
        S::ListsAnew(operator),
        S::IsKilledAndStarts(operator),
    ]
}

/// A step of a node.
pub fn of_node(node: usize, world: &World) -> Vec<Step> {
    use Step as S;
    let mut steps = vec![
        S::BindsThePodTo(node),
        S::SeesThePod(node),
        S::TellsThePodsState(node),
        S::RemovesThePod(node),
        S::LosesItsLink(node),
        S::GetsItsLinkBack(node),
        S::LosesItsPowerForAMoment(node),
    ];
    for pod in 1..=world.pods_made {
        match world.local(node, pod) {
            Local::Known => steps.extend([S::StartsQemu { node, pod }, S::EndsQemu { node, pod }]),
            Local::Up if world.imports(pod) => {
                steps.extend([
                    S::EndsQemu { node, pod },
                    S::QemuCrashes { node, pod },
                    S::CompletesTheImport { node, pod },
                ]);
            }
            Local::Up => {
                steps.extend([
                    S::EndsQemu { node, pod },
                    S::QemuCrashes { node, pod },
                    S::GuestPowersOff { node, pod },
                ]);
            }
            Local::Nothing | Local::Dead | Local::PoweredOff => {}
        }
    }
    steps
}
