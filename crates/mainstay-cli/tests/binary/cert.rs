//! `mainstay cert`: what it makes opens doors, what it must not overwrite stays.

use crate::harness::{Folder, run};
use mainstay_tls::{TlsError, TlsFiles, check_client_files, check_files};
use std::os::unix::fs::PermissionsExt;

fn files(folder: &Folder, name: &str) -> TlsFiles {
    TlsFiles::in_directory(&folder.path("certificates"), name)
}

fn authority() -> Folder {
    let folder = Folder::new();
    let said = run(&folder, &["cert", "init", "certificates", "--cluster", "shop"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("it goes to no node"), "{}", said.out);
    folder
}

#[test]
fn a_node_s_files_prove_its_name_and_no_other_and_only_their_owner_reads_them() {
    let folder = authority();
    let said = run(
        &folder,
        &["cert", "node", "certificates", "n1", "--address", "10.0.0.1", "--address", "n1.shop.example"],
    );
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("certificates/n1.key"), "{}", said.out);
    let n1 = files(&folder, "n1");
    check_files(&n1, "n1").expect("its peers accept it");
    assert!(matches!(check_files(&n1, "n2"), Err(TlsError::Unfit { .. })));
    for path in [&n1.authority, &n1.certificate, &n1.key, &folder.path("certificates/ca.key")] {
        let mode = std::fs::metadata(path).expect("it was made").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
}

#[test]
fn a_client_s_files_make_no_node() {
    let folder = authority();
    let said = run(&folder, &["cert", "client", "certificates", "app"]);
    assert!(said.code == 0 && said.out.contains("certificates/app.key"), "{}", said.err);
    check_client_files(&files(&folder, "app")).expect("nodes accept it");
    assert!(matches!(check_files(&files(&folder, "app"), "app"), Err(TlsError::Unfit { .. })));
}

#[test]
fn nothing_is_overwritten() {
    let folder = authority();
    assert_eq!(run(&folder, &["cert", "node", "certificates", "n1"]).code, 0);
    let read = |name: &str| std::fs::read(folder.path(&format!("certificates/{name}"))).expect("it was made");
    let names = ["ca.pem", "ca.key", "n1.pem", "n1.key"];
    let before = names.map(read);
    for arguments in
        [&["cert", "init", "certificates", "--cluster", "shop"][..], &["cert", "node", "certificates", "n1"]]
    {
        let said = run(&folder, arguments);
        assert_eq!(said.code, 3, "{}", said.err);
        assert!(said.err.contains("nothing is overwritten"), "{}", said.err);
    }
    assert!(names.map(read) == before, "the files have changed");
}

#[test]
fn names_that_could_pass_for_others_are_refused() {
    let folder = authority();
    for arguments in [
        &["cert", "init", "other", "--cluster", "a/b"][..],
        &["cert", "node", "certificates", "../n1"],
        &["cert", "node", "certificates", "ca"],
        &["cert", "node", "certificates", "10"],
        &["cert", "node", "certificates", "n1", "--address", "n2"],
        &["cert", "node", "certificates", "n1", "--address", "*.shop.example"],
        &["cert", "node", "certificates", "n1", "--address", "10.0.0.1:7171"],
    ] {
        let said = run(&folder, arguments);
        assert_eq!(said.code, 2, "{arguments:?}: {}", said.err);
    }
    assert!(!folder.path("other").exists() && !files(&folder, "n1").key.exists(), "nothing was made");
}

#[test]
fn files_of_two_authorities_make_no_node() {
    let folder = authority();
    assert_eq!(run(&folder, &["cert", "init", "second", "--cluster", "shop"]).code, 0);
    std::fs::copy(folder.path("second/ca.key"), folder.path("certificates/ca.key"))
        .expect("it can be copied");
    let said = run(&folder, &["cert", "node", "certificates", "n1"]);
    assert_eq!(said.code, 3, "{}", said.err);
    assert!(said.err.contains("do not belong together"), "{}", said.err);
    assert!(
        !files(&folder, "n1").key.exists() && !files(&folder, "n1").certificate.exists(),
        "nothing was kept"
    );
    let said = run(&folder, &["cert", "node", "missing", "n1"]);
    assert!(said.code == 3 && said.err.contains("mainstay cert init"), "{}", said.err);
}
