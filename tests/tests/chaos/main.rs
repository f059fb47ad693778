//! Tasks under failures: a kill at each failpoint, random lifecycles with random kills, and rare states.

mod edge_cases;
mod environment;
mod kill_points;
mod lifecycle;
mod random_lifecycles;
mod rng;
mod scenario;
