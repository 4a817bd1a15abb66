//! Scenarios: a VM with a scripted API server, with the exact requests of each step.

mod away;
mod crash_loop;
mod deleted;
mod disks;
mod explain;
mod fake_api;
mod fetch;
mod fetch_settings;
mod health;
mod ignored;
mod lives;
mod namesake;
mod old_list;
mod paused;
mod refresh_volume;
mod refused;
mod resources;
mod restart;
mod secrets;
mod seed;
mod services;
mod settings;
mod silent;
mod start;
mod stopping;
mod world;
