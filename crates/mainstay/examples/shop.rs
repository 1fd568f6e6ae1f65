//! Services that talk: orders ask the stocks of their articles, over as many nodes as there are.
//!
//! ```text
//! cargo run --release -p mainstay --example shop
//! curl -d 10 http://127.0.0.1:7070/call/stock/apple
//! curl -H 'Idempotency-Key: k1' -d '{"apple": 2}' http://127.0.0.1:7070/call/order/1
//! ```

use mainstay::Refusal;
use mainstay::instance::{Caller, Context, Instance, Key, Node, Reply};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many of each article.
type Articles = BTreeMap<String, u32>;

/// An order, by its number: asks for each article where that is, and is answered when all have said what they gave.
#[derive(Default, Serialize, Deserialize)]
struct Order {
    caller: Option<Caller<Articles>>,
    asked: usize,
    given: Articles,
}

/// What a stock tells an order.
#[derive(Serialize, Deserialize)]
struct Given {
    article: String,
    count: u32,
}

impl Instance for Order {
    const TYPE: &'static str = "order";
    type Command = BTreeMap<Key, u32>;
    type Answer = Articles;
    type Message = Given;
    type Query = ();
    type View = Articles;

    fn handle(
        &mut self,
        articles: BTreeMap<Key, u32>,
        context: &mut Context<'_, Self>,
    ) -> Result<Reply<Articles>, Refusal> {
        if self.caller.is_some() || articles.is_empty() {
            return Err("an order is placed once, and for something".into());
        }
        self.caller = Some(context.caller());
        self.asked = articles.len();
        for (article, count) in articles {
            context.tell::<Stock>(&article, &Ask { order: context.key().to_owned(), count });
        }
        Ok(Reply::Later)
    }

    fn message(&mut self, given: Given, context: &mut Context<'_, Self>) {
        self.given.insert(given.article, given.count);
        if let Some(caller) = self.caller
            && self.given.len() == self.asked
        {
            context.answer(caller, Ok(self.given.clone()));
        }
    }

    fn query(&self, (): ()) -> Result<Articles, Refusal> {
        Ok(self.given.clone())
    }
}

/// The stock of an article, by its name: gives what it has.
#[derive(Default, Serialize, Deserialize)]
struct Stock {
    delivered: u32,
    given: u32,
}

/// What an order tells a stock.
#[derive(Serialize, Deserialize)]
struct Ask {
    order: String,
    count: u32,
}

impl Instance for Stock {
    const TYPE: &'static str = "stock";
    type Command = u32;
    type Answer = u32;
    type Message = Ask;
    type Query = ();
    type View = u32;

    fn handle(&mut self, delivered: u32, _: &mut Context<'_, Self>) -> Result<Reply<u32>, Refusal> {
        self.delivered = self.delivered.checked_add(delivered).ok_or("there is no room for so many")?;
        Ok(Reply::Now(self.left()))
    }

    fn message(&mut self, ask: Ask, context: &mut Context<'_, Self>) {
        let count = ask.count.min(self.left());
        self.given += count;
        context.tell::<Order>(&ask.order, &Given { article: context.key().to_owned(), count });
    }

    fn query(&self, (): ()) -> Result<u32, Refusal> {
        Ok(self.left())
    }
}

impl Stock {
    fn left(&self) -> u32 {
        self.delivered - self.given
    }
}

pub(crate) fn shop() -> Node {
    Node::named("shop").host::<Order>().host::<Stock>()
}

fn main() -> std::process::ExitCode {
    shop().serve()
}

#[cfg(test)]
mod tests {
    use super::{Order, Stock, shop};
    use mainstay::testing::{Call, campaign_of_instances};
    use std::collections::BTreeMap;

    /// Nodes crash, links break, and whatever is ordered leaves a stock once.
    #[test]
    fn it_survives_every_crash() {
        campaign_of_instances(shop(), 0..60)
            .commands(|random| {
                let articles = ["apple", "pear", "plum"];
                let article = *random.pick(&articles);
                if random.chance(300) {
                    return Call::to::<Stock>(article, random.below(10));
                }
                let wanted = [(article, random.below(4)), (*random.pick(&articles), 1)];
                Call::to::<Order>(&random.below(40).to_string(), BTreeMap::from(wanted))
            })
            .invariant::<Stock>(|_, stock| assert!(stock.given <= stock.delivered))
            .at_rest(|rest| {
                for (article, stock) in rest.all::<Stock>() {
                    let got = rest.all::<Order>().filter_map(|(_, order)| order.given.get(article));
                    assert_eq!(got.sum::<u32>(), stock.given, "of {article}");
                }
            })
            .run();
    }
}
