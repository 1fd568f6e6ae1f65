//! `mainstay upgrade --check`.

use crate::served::{Workplace, printed};
use crate::trial;
use libtest_mimic::Trial;
use serde_json::Value;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_changed_handler_shows_its_first_difference", a_changed_handler_shows_its_first_difference),
        trial("a_version_that_refuses_the_state_is_named", a_version_that_refuses_the_state_is_named),
        trial("binaries_that_do_not_fit_are_named", binaries_that_do_not_fit_are_named),
    ]
}

/// While the old version serves, after it was killed, and after it has stopped: the directory is never changed.
fn a_changed_handler_shows_its_first_difference() {
    let place = Workplace::new();
    let served = place.start("1", None);
    for (number, amount) in [5, 7, 150, 3].into_iter().enumerate() {
        served.deposit(&format!("k{number}"), amount);
    }
    let check = |new: &str, code| {
        let compared = place.mainstay(&["upgrade", "--check", "saver-1", new, "DIR", "--json"]);
        serde_json::from_str::<Value>(&printed(&compared, code)).expect("it prints JSON")
    };
    let shown = |compared: &Value| {
        let difference = &compared["difference"];
        assert_eq!((&difference["delivery"], &compared["same"]), (&3.into(), &2.into()), "{compared}");
        assert_eq!(difference["delivered"]["identity"], "key k2");
        assert_eq!(difference["delivered"]["body"], r#"{"amount":150,"notice":false}"#);
        assert_eq!(difference["recorded"]["status"], 200);
        assert_eq!(difference["old"]["answer"]["body"], "162");
        assert_eq!(difference["new"]["answer"]["body"], "163");
        assert_eq!(compared["old_not_as_recorded"], Value::Null);
        assert_eq!((&compared["old"]["version"], &compared["new"]["version"]), (&1.into(), &2.into()));
    };
    shown(&check("saver-generous", 1));
    served.kill();
    let before = place.picture();
    shown(&check("saver-generous", 1));
    let same = check("saver-2", 0);
    assert_eq!((&same["same"], &same["difference"]), (&4.into(), &Value::Null), "{same}");
    assert_eq!(place.picture(), before, "the directory was changed");
    let words = place.mainstay(&["upgrade", "--check", "saver-1", "saver-generous", "DIR"]);
    let words = printed(&words, 1);
    for expected in ["FIRST DIFFERENCE", "answer 200: 162", "answer 200: 163", "saver version 2"] {
        assert!(words.contains(expected), "`{expected}` is missing in:\n{words}");
    }
    // Behind the first checkpoint there is nothing, and that is not the same as no difference.
    place.start("1", None).stop();
    let nothing = check("saver-2", 1);
    assert_eq!((&nothing["same"], &nothing["difference"]), (&0.into(), &Value::Null), "{nothing}");
}

fn a_version_that_refuses_the_state_is_named() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.deposit("k1", 5);
    served.stop();
    let served = place.start("1", None);
    served.deposit("k2", 6);
    served.kill();
    let refused = place.mainstay(&["upgrade", "--check", "saver-1", "saver-forgetful", "DIR", "--last", "1"]);
    let words = printed(&refused, 1);
    assert!(words.contains("could not go on"), "{words}");
    assert!(words.contains("nothing is taken over from version 1"), "{words}");
    let same = place.mainstay(&["upgrade", "--check", "saver-1", "saver-2", "DIR", "--last", "1", "--json"]);
    let same: Value = serde_json::from_str(&printed(&same, 0)).expect("it prints JSON");
    assert_eq!(same["same"], 1, "it begins with the checkpoint of the clean stop: {same}");
    assert_ne!(same["checkpoint"], Value::Null);
}

/// A binary that is no service, and one whose service is another.
fn binaries_that_do_not_fit_are_named() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.deposit("k1", 5);
    served.kill();
    let mainstay = env!("CARGO_BIN_EXE_mainstay");
    let other = printed(&place.mainstay(&["upgrade", "--check", mainstay, "saver-1", "DIR"]), 1);
    assert!(other.contains("belongs to service `saver`"), "{other}");
    let none = place.mainstay(&["upgrade", "--check", "saver-1", "saver-none", "DIR"]);
    assert_eq!(none.status.code(), Some(3), "{none:?}");
    assert_eq!(place.mainstay(&["upgrade", "saver-1", "saver-2", "DIR"]).status.code(), Some(2));
}
