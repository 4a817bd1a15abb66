//! Totals of all VMs.

use crate::web::history::Sample;
use crate::web::http::Shared;
use axum::Json;
use axum::extract::State;

pub(super) async fn history(State(console): Shared) -> Json<Vec<Sample>> {
    Json(console.history.samples())
}
