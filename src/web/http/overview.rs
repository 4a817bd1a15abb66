//! Totals of all VMs.

use crate::web::history::Sample;
use crate::web::http::{Problem, Shared};
use crate::web::logins::Login;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};

pub(super) async fn history(
    State(console): Shared,
    Extension(login): Extension<Login>,
) -> Result<Json<Vec<Sample>>, Problem> {
    if !login.viewer(&console.settings()).sees_all() {
        return Err(Problem::new(StatusCode::NOT_FOUND, "NotFound"));
    }
    Ok(Json(console.history.samples()))
}
