//! Tasks that live through everything: each failpoint visited with `kill -9`, and random lives with random deaths around them.

mod dice;
mod edges;
mod life;
mod points;
mod scenario;
mod storm;
mod world;
