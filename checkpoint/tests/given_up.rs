//! What a rank reports of a save that rank 0 has given up: never what it misses in the folder, which would hide the cause.

use crossweave_checkpoint::*;

/// A rank that comes when rank 0 has no room any more is no first cause: the path it misses was right.
#[test]
fn a_rank_that_begins_behind_an_owner_that_gave_up_names_the_owner() {
    let temp = tempfile::tempdir().unwrap();
    let id = session(temp.path()).unwrap();
    let owner = Writer::join(temp.path(), 4, 2, &id, true).unwrap();
    let other = Writer::join(temp.path(), 4, 2, &id, false).unwrap();
    owner.abandon();
    let Err(e) = other.rank(1) else {
        panic!("the folder is gone");
    };
    assert!(matches!(e, CheckpointError::GivenUp { step: 4 }), "{e}");
    assert!(e.to_string().contains("rank 0"), "{e}");
}

/// A failure to write into a folder that rank 0 has removed meanwhile is none either.
#[test]
fn a_rank_whose_folder_goes_while_it_writes_names_the_owner() {
    let temp = tempfile::tempdir().unwrap();
    let id = session(temp.path()).unwrap();
    let owner = Writer::join(temp.path(), 4, 2, &id, true).unwrap();
    let other = Writer::join(temp.path(), 4, 2, &id, false).unwrap();
    let gone = std::cell::Cell::new(Some(owner));
    let mut rank = other.rank(1).unwrap();
    rank.put_tensor(TensorOut::stream("w", Dtype::F32, &[4], |out| {
        drop(gone.take());
        out.write_all(&[0; 16])
    }));
    let e = rank.finish().unwrap_err();
    assert!(matches!(e, CheckpointError::GivenUp { step: 4 }), "{e}");
    assert_eq!(
        std::fs::read_dir(temp.path().join("checkpoints"))
            .unwrap()
            .count(),
        0
    );
}
