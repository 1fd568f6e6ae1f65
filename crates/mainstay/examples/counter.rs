//! A whole service: a counter that survives kill -9.
//!
//! ```text
//! cargo run --release -p mainstay --example counter
//! curl -H 'Idempotency-Key: k1' -d '{"amount": 5}' http://127.0.0.1:7070/call
//! ```

use mainstay::{Context, Refusal, Service};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Counter {
    total: i64,
}

#[derive(Deserialize)]
struct Add {
    amount: i64,
}

impl Service for Counter {
    const NAME: &'static str = "counter";
    type Command = Add;
    type Answer = i64;
    type Query = ();
    type View = i64;

    fn handle(&mut self, add: Add, _: &mut Context<'_>) -> Result<i64, Refusal> {
        self.total = self.total.checked_add(add.amount).ok_or("the total would not fit")?;
        Ok(self.total)
    }

    fn query(&self, (): ()) -> Result<i64, Refusal> {
        Ok(self.total)
    }
}

fn main() -> std::process::ExitCode {
    mainstay::serve(Counter::default)
}

#[cfg(test)]
mod tests {
    use super::Counter;

    #[test]
    fn it_survives_every_crash() {
        mainstay::testing::campaign::<Counter>(0..100)
            .commands(|random| serde_json::json!({ "amount": random.below(10) }))
            .invariant(|counter| assert!(counter.total >= 0))
            .run();
    }
}
