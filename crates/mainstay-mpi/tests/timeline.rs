//! The timeline of a run of more than a hundred thousand calls: its page within its limits, and driven in a real browser where
//! there is one.

use mainstay_mpi::call::Call;
use mainstay_mpi::command::timeline::{Limits, timeline};
use mainstay_mpi::compression::Compression;
use mainstay_mpi::definition::Comm;
use mainstay_mpi::ending::Ending;
use mainstay_mpi::field::{Field, ObjectKind, Role};
use mainstay_mpi::format::{FileHeader, Kind};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::recording::Recording;
use mainstay_mpi::run::Run;
use std::path::Path;
use std::process::{Command, Stdio};

const HEADER: FileHeader = FileHeader {
    run: [5; 16],
    page_bytes: 4 << 20,
    pages: 3,
    payload: Payload::Receiver,
    compression: Compression::None,
    kept_pages: 0,
};
/// Messages, by turns to the one and to the other rank.
const ROUNDS: u64 = 60_000;
const NAMES: [&str; 4] = ["MPI_Init", "MPI_Send", "MPI_Recv", "MPI_Finalize"];

/// The logs of two ranks that pass a message to and fro, written as the shim writes them.
fn record(folder: &Path) {
    let mut recordings = [0, 1].map(|rank: i64| {
        let mut recording =
            Recording::create(folder, &format!("rank-{rank:05}"), HEADER, true).expect("a log");
        recording.write_texts(Kind::Names, NAMES.into_iter());
        let start = ["size", "2", "library", "Open MPI", "argument", "</script><b>app"];
        recording.write_texts(Kind::Start, start.into_iter());
        put(&mut recording, 0, &[]);
        recording.write_comm(&Comm {
            id: 1,
            rank,
            size: 2,
            remote_size: 0,
            peers: vec![0, 1],
            locals: Vec::new(),
        });
        recording
    });
    for round in 0..ROUNDS {
        let tag = i64::try_from(round % 5).expect("a small number");
        for (rank, recording) in (0..).zip(&mut recordings) {
            let peer = 1 - rank;
            let inputs = [
                Field::Input(Role::Count, 4),
                Field::Handle(ObjectKind::Datatype, 1),
                Field::Input(Role::Peer, peer),
                Field::Input(Role::Tag, tag),
                Field::Handle(ObjectKind::Comm, 1),
                Field::Result(0),
            ];
            if round.is_multiple_of(2) == (rank == 0) {
                put(recording, 1, &[&[Field::Data(16, 7)][..], &inputs].concat());
            } else {
                put(recording, 2, &[&inputs[..], &[Field::Status(peer, tag, 16, b"")]].concat());
            }
        }
    }
    let [mut first, mut second] = recordings;
    put(&mut first, 3, &[Field::Result(0)]);
    first.finish(Ending::default());
    second.enter(3);
    second.wait(&Call::default());
    // Killed: its ring stays.
    std::mem::forget(second);
}

fn put(recording: &mut Recording, function: u16, fields: &[Field<'_>]) {
    recording.enter(function);
    let mut call = Call::default();
    call.begin(function, 0);
    fields.iter().for_each(|field| call.put(field));
    // SAFETY: the call has no memory of anybody else's.
    unsafe { recording.write(&mut call) };
}

/// Moves and zooms as a person does, and writes what the page shows then.
const DRIVER: &str = r#"<pre id="driven"></pre><script>
const said = what => { document.getElementById("driven").textContent += what + "\n"; };
const view = () => document.getElementById("view").textContent;
const pointer = (kind, px, py) => canvas.dispatchEvent(new PointerEvent(kind, { clientX: px, clientY: py + canvas.getBoundingClientRect().top, bubbles: true }));
const span = () => (to - from) / last;
try {
draw();
said("bars " + (ranks[0].n + ranks[1].n) + " messages " + messages.length);
said("legend " + [...document.querySelectorAll(".key")].map(key => key.textContent).join(","));
said("painted " + (parseInt(view().split(": ")[1]) > 1));
const whole = span();
const found = ranks[0].n >> 1;
for (let i = 0; i < 40; i++)
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, clientX: x(ranks[0].end[found]), clientY: 100, bubbles: true, cancelable: true }));
draw();
said("zoomed " + (span() < whole / 1000));
const middle = x((ranks[0].begin[found] + ranks[0].end[found]) / 2);
pointer("pointermove", middle, y(0) + rowHeight / 2);
said("hover " + document.getElementById("about").textContent.split("\n").join(" | "));
const before = from;
pointer("pointerdown", 300, 100); pointer("pointermove", 500, 100); dispatchEvent(new PointerEvent("pointerup"));
said("moved " + (from < before));
canvas.dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
draw();
said("back " + (span() === whole));
pointer("pointermove", x(end) - 1, y(1) + rowHeight / 2);
said("end " + document.getElementById("about").textContent.split("\n").join(" | "));
} catch (error) { said(error.stack); }
</script>"#;

fn browser() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let mut command = Command::new(name);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

#[test]
fn a_page_of_many_calls_is_within_its_limits_and_a_browser_zooms_moves_and_explains() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = folder.path().join("run");
    std::fs::create_dir(&runs).expect("a folder");
    record(&runs);
    let run = Run::open(&runs).expect("a run");
    let whole = timeline(&run, Limits::default()).expect("a page").page;
    assert!(!whole.contains("one of"), "all is drawn");
    assert!(
        !whole.contains("</script><b>app") && !whole.contains("http"),
        "nothing foreign in it, nothing to load"
    );
    let few = timeline(&run, Limits { bars_max: 2000, messages_max: 1000 }).expect("a page").page;
    assert!(few.len() < 150_000, "{}", few.len());
    assert!(
        few.contains("one of 60 messages is drawn") && few.contains("neighbouring calls are drawn as one")
    );

    let Some(browser) = browser() else {
        println!("skipped: the timeline in a browser: none of chromium, google-chrome is installed");
        return;
    };
    let page = folder.path().join("page.html");
    std::fs::write(&page, format!("{whole}{DRIVER}")).expect("a file");
    let shown = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,600", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .expect("the browser");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let driven = shown.split_once("<pre id=\"driven\">").map_or("", |(_, rest)| rest);
    let driven = driven.split("</pre>").next().unwrap_or_default();
    for part in [
        &format!("bars {} messages {ROUNDS}", 2 * ROUNDS + 3),
        "legend send,receive,collective,other,in it at the end,messages",
        "painted true",
        "zoomed true",
        "hover rank 0, call ",
        ": 16 bytes, tag ",
        "moved true",
        "back true",
        &format!("end rank 1, call {} | in MPI_Finalize when its log ends", ROUNDS + 2),
    ] {
        assert!(driven.contains(part), "{part} in\n{driven}");
    }
    assert!(shown.contains("&lt;/script&gt;&lt;b&gt;app (2 ranks)"), "the title is the program's");
}
