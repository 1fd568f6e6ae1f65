//! tmp
fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let o = mainstay_bench::step::StepOptions {
        directory: "/tmp/benchscratch".into(),
        quick: true,
        serve: None,
        only,
    };
    let r = mainstay_bench::step::step(&o, &mut |n| eprintln!("{n}")).unwrap();
    println!("{r}");
}
