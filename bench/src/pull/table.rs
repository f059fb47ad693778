//! Costs of contenders, their medians, and the table of ratios.

use std::collections::BTreeMap;

use super::cost::Cost;
use crate::report::{median, note, say};

/// Costs by contender, in the order in which contenders first appeared.
#[derive(Debug, Default)]
pub struct Costs {
    order: Vec<String>,
    costs: BTreeMap<String, Vec<Cost>>,
}

impl Costs {
    /// Adds what a pull cost, or tells why it is missing.
    pub fn add(&mut self, name: &str, cost: Result<Cost, String>) {
        let cost = match cost {
            Ok(cost) => cost,
            Err(error) => return note(&format!("{name}: {error}")),
        };
        if !self.costs.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.costs.entry(name.to_owned()).or_default().push(cost);
    }

    /// Prints the table; the first contender is the one that the others are compared with.
    pub fn table(&self, title: &str) {
        say(&format!(
            "\n### {title}\n\n| | median ms | lowest | highest | runs | ratio to ours | CPU s | ratio | peak MiB |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|"
        ));
        for row in self.rows() {
            say(&row);
        }
    }

    fn rows(&self) -> Vec<String> {
        let middle = |name: &str, of: fn(&Cost) -> f64| median(&self.costs[name].iter().map(of).collect::<Vec<_>>());
        let Some(first) = self.order.first() else { return Vec::new() };
        let row = |name: &String| {
            let costs = &self.costs[name];
            let times = costs.iter().map(|cost| cost.took.as_secs_f64() * 1000.0);
            let (low, high) = times.fold((f64::MAX, 0.0_f64), |(low, high), t| (low.min(t), high.max(t)));
            let (time, own) = (middle(name, time)?, middle(first, time)?);
            let (cpu, own_cpu) = (middle(name, cpu)?, middle(first, cpu)?);
            let peak = middle(name, |cost| cost.peak as f64 / 1024.0)?;
            Some(format!(
                "| {name} | {time:.0} | {low:.0} | {high:.0} | {} | {:.2} | {cpu:.2} | {:.2} | {peak:.0} |",
                costs.len(),
                time / own,
                cpu / own_cpu
            ))
        };
        self.order.iter().filter_map(row).collect()
    }
}

fn time(cost: &Cost) -> f64 {
    cost.took.as_secs_f64() * 1000.0
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
        let rows = costs.rows();
        assert_eq!(rows[0], "| z | 1000 | 1000 | 1000 | 2 | 1.00 | 2.00 | 1.00 | 2 |");
        assert_eq!(rows[1], "| a | 3000 | 3000 | 3000 | 1 | 3.00 | 6.00 | 3.00 | 1 |");
        assert_eq!(rows.len(), 2);
    }
}
