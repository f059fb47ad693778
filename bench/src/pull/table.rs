//! The table of pull costs.

use super::cost::Cost;
use crate::report::{Row, Samples, milliseconds, note, range};

/// The costs of each program.
#[derive(Debug, Default)]
pub struct Costs(Samples<Cost>);

impl Costs {
    /// Adds the cost of a pull, or reports why it is missing.
    pub fn add(&mut self, name: &str, cost: Result<Cost, String>) {
        match cost {
            Ok(cost) => self.0.add(name, cost),
            Err(error) => note(&format!("{name}: {error}")),
        }
    }

    /// Prints the table. Ratios relate to the first program.
    pub fn table(&self, title: &str) {
        let head = "| | median ms | lowest | highest | runs | ratio to ours | CPU s | ratio | peak MiB |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|---:|";
        self.0.print(title, head, row);
    }
}

fn row(costs: &Samples<Cost>, Row { name, first, values }: Row<Cost>) -> Option<String> {
    let (low, high) = range(values.iter().map(time));
    let (middle, ours) = (costs.middle(name, time)?, costs.middle(first, time)?);
    let (processors, our_processors) = (costs.middle(name, cpu)?, costs.middle(first, cpu)?);
    let peak = costs.middle(name, |cost| cost.peak as f64 / 1024.0)?;
    Some(format!(
        "| {name} | {middle:.0} | {low:.0} | {high:.0} | {} | {:.2} | {processors:.2} | {:.2} | {peak:.0} |",
        values.len(),
        middle / ours,
        processors / our_processors
    ))
}

fn time(cost: &Cost) -> f64 {
    milliseconds(&cost.took)
}

fn cpu(cost: &Cost) -> f64 {
    cost.cpu.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ratios_are_to_the_first() {
        let mut costs = Costs::default();
        let cost = |ms, peak| Cost { took: Duration::from_millis(ms), cpu: Duration::from_millis(2 * ms), peak };
        for (name, value) in [("z", cost(1000, 2048)), ("a", cost(3000, 1024)), ("z", cost(1000, 2048))] {
            costs.add(name, Ok(value));
        }
        costs.add("never", Err("not installed".into()));
        let rows = costs.0.rows(row);
        assert_eq!(rows[0], "| z | 1000 | 1000 | 1000 | 2 | 1.00 | 2.00 | 1.00 | 2 |");
        assert_eq!(rows[1], "| a | 3000 | 3000 | 3000 | 1 | 3.00 | 6.00 | 3.00 | 1 |");
        assert_eq!(rows.len(), 2);
    }
}
