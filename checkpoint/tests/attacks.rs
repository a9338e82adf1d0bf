//! Damaged and hostile files: each is a typed error that names file, tensor and fix; none panics.

use crossweave_checkpoint::*;
use proptest::prelude::*;
use std::path::Path;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat()
}

fn open(bytes: &[u8]) -> Result<SafeFile> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    SafeFile::open(&path)
}

/// The error's text, which must name the file, a fix, and each of `words`.
fn refused(bytes: &[u8], words: &[&str]) {
    let text = open(bytes).expect_err("opened").to_string();
    for word in ["model.safetensors", "fix:"].iter().chain(words) {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]}}"#;

#[test]
fn hostile_headers_are_refused_by_name() {
    assert!(open(&file(TWO, &[0; 16])).is_ok());
    refused(&[], &["truncated"]);
    refused(&u64::MAX.to_le_bytes(), &["18446744073709551615"]);
    refused(&100_000_001u64.to_le_bytes(), &["100000001"]);
    refused(&90_000_000u64.to_le_bytes(), &["truncated"]);
    refused(&file("not json", &[]), &["header"]);
    refused(&file("[]", &[]), &["header"]);
    refused(&file(&"[".repeat(5000), &[]), &["header"]);
    refused(
        &file(&format!("{{\"a\":{}", "[".repeat(5000)), &[]),
        &["header"],
    );
    refused(&file(TWO, &[0; 15]), &["`b`", "truncated"]);
    refused(&file(TWO, &[0; 17]), &["end at byte"]);
    let edit = |from: &str, to: &str| {
        assert!(TWO.contains(from));
        file(&TWO.replace(from, to), &[0; 16])
    };
    refused(&edit("BF16", "BF17"), &["`b`", "unknown dtype `BF17`"]);
    refused(&edit("[8,16]", "[4,12]"), &["`b`", "overlaps `a`"]);
    refused(&edit("[8,16]", "[16,8]"), &["`b`", "backwards"]);
    refused(&edit("[8,16]", "[8,17]"), &["`b`", "outside"]);
    refused(&edit("[8,16]", "[8,99999999999999999999]"), &["`b`"]);
    refused(&edit("[8,16]", "[-8,16]"), &["`b`"]);
    refused(
        &edit("[2,2]", "[2,3]"),
        &["`b`", "hold 8 bytes", "needs 12"],
    );
    refused(
        &edit("[2,2]", "[4294967296,4294967296,4294967296]"),
        &["`b`", "not a countable"],
    );
    refused(&edit("\"b\"", "\"a\""), &["`a`", "twice"]);
    refused(&edit("\"shape\":[2],", ""), &["`a`", "shape"]);
    let hole = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
    refused(&file(hole, &[0; 12]), &["`b`", "hole"]);
    let odd = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
    refused(&file(odd, &[0; 1]), &["`a`", "not a countable"]);
}

#[test]
fn reads_outside_a_tensor_are_errors() {
    let f = {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, file(TWO, &[0; 16])).unwrap();
        SafeFile::open(&path).unwrap()
    };
    assert!(f.read_rows("b", 0..2).is_ok());
    assert!(f.read_rows("b", 1..3).is_err());
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 2..1;
    assert!(f.read_rows("b", backwards).is_err());
    assert!(f.read_elements("a", 0..u64::MAX).is_err());
    assert!(f.read_elements_into("a", u64::MAX, &mut [0; 4]).is_err());
    assert!(f.read_elements_into("a", 0, &mut [0; 3]).is_err());
    let text = f.read("aa").unwrap_err().to_string();
    assert!(text.contains("nearest name is `a`"), "{text}");
}

fn small_model(dir: &Path, shard_bytes: u64) {
    let tensors =
        ["w.0", "w.1", "w.2"].map(|n| TensorOut::from_f32(n, Dtype::F32, &[2, 3], vec![1.5f32; 6]));
    let config = serde_json::json!({"model_type": "llama"});
    export_hf(dir, &config, tensors, shard_bytes, &[]).unwrap();
}

fn read_everything(dir: &Path) -> Result<()> {
    let model = HfDir::open(dir)?;
    for name in model.tensors.keys() {
        model.read(name)?;
        // A flipped dtype may leave a type that is not a float: an error, not a panic.
        let _ = model.read_f32(name);
    }
    Ok(())
}

#[test]
fn every_truncation_of_every_file_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("m");
    small_model(&dir, 30);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("generation_config.json") {
            continue;
        }
        let whole = std::fs::read(&path).unwrap();
        // The last byte of a JSON file is its newline, whose loss is none.
        let json = path.extension().unwrap() == "json";
        for n in 0..whole.len() - usize::from(json) {
            std::fs::write(&path, &whole[..n]).unwrap();
            let text = read_everything(&dir)
                .expect_err("truncated file accepted")
                .to_string();
            assert!(
                text.contains(path.file_name().unwrap().to_str().unwrap()),
                "{text}"
            );
        }
        std::fs::write(&path, &whole).unwrap();
    }
    read_everything(&dir).unwrap();
}

#[test]
fn every_flipped_header_byte_is_an_error_or_harmless_but_no_panic() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("m");
    small_model(&dir, u64::MAX);
    let path = dir.join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let mut num_refused = 0;
    for at in 0..whole.len() - 72 {
        for mask in [0x01, 0x20, 0x80, 0xff] {
            let mut bad = whole.clone();
            bad[at] ^= mask;
            std::fs::write(&path, &bad).unwrap();
            num_refused += usize::from(read_everything(&dir).is_err());
        }
    }
    assert!(num_refused > 500, "{num_refused}");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = open(&bytes);
        let _ = open(&file(&String::from_utf8_lossy(&bytes), &bytes));
    }

    #[test]
    fn random_entries_are_proven_or_refused(
        entries in prop::collection::vec(("[ab_]{1,2}", prop::collection::vec(any::<u64>(), 0..3), any::<u8>(), any::<u8>()), 0..4),
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let parts: Vec<String> = entries.iter().map(|(n, shape, a, b)| {
            let shape: Vec<u64> = shape.iter().map(|d| if d % 3 == 0 { *d } else { d % 5 }).collect();
            format!("\"{n}\":{{\"dtype\":\"U8\",\"shape\":{shape:?},\"data_offsets\":[{},{}]}}", a % 32, b % 64)
        }).collect();
        if let Ok(f) = open(&file(&format!("{{{}}}", parts.join(",")), &data)) {
            for (name, info) in f.tensors() {
                let bytes = f.read(name);
                // The folder is gone, the handle is not.
                prop_assert_eq!(bytes.unwrap().len() as u64, info.num_elements());
            }
        }
    }
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("m");
    small_model(&dir, 30);
    let index = dir.join("model.safetensors.index.json");
    let good = std::fs::read_to_string(&index).unwrap();
    let check = |text: String, words: &[&str]| {
        std::fs::write(&index, text).unwrap();
        let e = HfDir::open(&dir).expect_err("opened").to_string();
        for w in [&["model.safetensors.index.json", "fix:"], words].concat() {
            assert!(e.contains(w), "no `{w}` in: {e}");
        }
    };
    let (one, two) = (
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
    );
    check(
        good.replace(one, "model-00009-of-00003.safetensors"),
        &["missing", "model-00009", "w.0"],
    );
    check(good.replace(one, two), &["w.0", "does not hold"]);
    check(
        good.replace(one, "../m/model-00001-of-00003.safetensors"),
        &["plain file name"],
    );
    check(good.replace("\"w.1\"", "\"w.0\""), &["w.0", "twice"]);
    check(
        good.replace("\"w.1\"", "\"w.9\""),
        &["w.9", "does not hold"],
    );
    check("{}".into(), &["weight_map"]);
    check("{\"weight_map\": {}}".into(), &["empty"]);
    check("{\"weight_map\": {\"w.0\": 3}}".into(), &[]);
    std::fs::write(&index, &good).unwrap();
    std::fs::copy(dir.join(one), dir.join(two)).unwrap();
    let e = HfDir::open(&dir).unwrap_err().to_string();
    assert!(e.contains("w.0") && e.contains("as well"), "{e}");
}

#[test]
fn missing_files_say_what_to_name() {
    let temp = tempfile::tempdir().unwrap();
    let text = |p: &Path| HfDir::open(p).unwrap_err().to_string();
    assert!(text(&temp.path().join("nowhere")).contains("no such model directory"));
    assert!(text(temp.path()).contains("config.json"));
    std::fs::write(temp.path().join("config.json"), "[1]").unwrap();
    assert!(text(temp.path()).contains("object"));
    std::fs::write(temp.path().join("config.json"), "{\"a\": \n 1,}").unwrap();
    assert!(text(temp.path()).contains("config.json:2:"));
    std::fs::write(temp.path().join("config.json"), "{}").unwrap();
    assert!(text(temp.path()).contains("neither model.safetensors"));
    std::fs::write(temp.path().join("pytorch_model.bin"), "").unwrap();
    assert!(text(temp.path()).contains("safe_serialization"));
}

#[test]
fn a_tied_copy_with_other_values_is_refused_and_an_only_copy_is_used() {
    let temp = tempfile::tempdir().unwrap();
    let config = serde_json::json!({"tie_word_embeddings": true});
    let write = |names: &[(&str, f32)]| {
        let dir = temp.path().join("m");
        let tensors = names
            .iter()
            .map(|&(n, v)| TensorOut::from_f32(n, Dtype::BF16, &[4, 2], vec![v; 8]));
        export_hf(&dir, &config, tensors, u64::MAX, &[]).unwrap();
        let resolver = Resolver::new([("model.embed_tokens.weight".to_string(), vec![4, 2])]);
        resolver
            .base("model.")
            .tie("lm_head.weight", "model.embed_tokens.weight")
            .resolve(&HfDir::open(&dir).unwrap())
    };
    let both = write(&[("model.embed_tokens.weight", 1.0), ("lm_head.weight", 2.0)]);
    assert!(matches!(both, Err(CheckpointError::TiedDiffer { .. })));
    let same = write(&[("embed_tokens.weight", 1.0), ("lm_head.weight", 1.0)]).unwrap();
    assert_eq!(same.tied_copies, ["lm_head.weight"]);
    let only = write(&[("lm_head.weight", 1.0)]).unwrap();
    assert_eq!(
        only.file_name("model.embed_tokens.weight"),
        Some("lm_head.weight")
    );
    let twice = write(&[
        ("model.embed_tokens.weight", 1.0),
        ("embed_tokens.weight", 1.0),
    ]);
    assert!(twice.unwrap_err().to_string().contains("stored twice"));
}

#[test]
fn an_export_refuses_what_it_would_destroy_and_leaves_nothing_on_failure() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("thesis");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("chapter1.tex"), "years of work").unwrap();
    let config = serde_json::json!({});
    let export = |tensors: Vec<TensorOut>| export_hf(&dir, &config, tensors, u64::MAX, &[]);
    let w = || TensorOut::from_f32("w", Dtype::F32, &[1], vec![1.0]);
    assert!(matches!(
        export(vec![w()]),
        Err(CheckpointError::Target { .. })
    ));
    assert!(dir.join("chapter1.tex").exists());
    std::fs::remove_file(dir.join("chapter1.tex")).unwrap();
    export(vec![w()]).unwrap();

    let short = TensorOut::bytes("v", Dtype::F32, &[2], vec![0; 7]);
    let text = export(vec![w(), short]).unwrap_err().to_string();
    assert!(text.contains("`v`") && text.contains("7 bytes"), "{text}");
    let failing = TensorOut::stream("v", Dtype::F32, &[2], |_| {
        Err(std::io::Error::other("device lost"))
    });
    assert!(
        export(vec![w(), failing])
            .unwrap_err()
            .to_string()
            .contains("device lost")
    );
    assert!(export(vec![w(), w()]).is_err());
    // Killed between the two renames: the error says where the old model is.
    let aside = temp.path().join(".thesis.replaced");
    std::fs::rename(&dir, &aside).unwrap();
    let text = HfDir::open(&dir).unwrap_err().to_string();
    assert!(text.contains(".thesis.replaced"), "{text}");
    std::fs::rename(&aside, &dir).unwrap();
    // What stood there stands, and no temporary folder is left.
    assert_eq!(HfDir::open(&dir).unwrap().read_f32("w").unwrap(), [1.0]);
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
}

/// The kept attack files: each is refused with its own reason. The table and the folders must list the same names.
#[test]
fn the_kept_attack_files_are_refused_each_for_its_own_reason() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/attacks"));
    let files: &[(&str, &[&str])] = &[
        ("dtype-unknown", &["`b`", "unknown dtype `BF17`"]),
        ("empty", &["0 bytes"]),
        ("header-length-huge", &["18446744073709551615"]),
        ("header-length-past-end", &["truncated", "90000000"]),
        ("header-nested", &["tensor `a`", "bad header entry"]),
        ("header-not-json", &["not a safetensors header"]),
        ("hole", &["`b`", "hole"]),
        ("name-twice", &["`a`", "twice"]),
        ("offsets-backwards", &["`b`", "backwards"]),
        ("offsets-outside", &["`b`", "outside"]),
        ("overlap", &["`b`", "overlaps `a`"]),
        ("pickle", &["converted"]),
        ("shape-disagrees", &["`b`", "needs 12"]),
        ("shape-overflow", &["`b`", "not a countable"]),
        ("trailing-bytes", &["the file at"]),
        ("truncated-data", &["`b`", "truncated"]),
        ("truncated-header", &["truncated"]),
    ];
    let models: &[(&str, &[&str])] = &[
        ("config-not-json", &["config.json:2:17"]),
        ("config-truncated", &["config.json:1:", "EOF"]),
        ("index-escapes", &["plain file name"]),
        ("index-name-twice", &["`a`", "lists the tensor twice"]),
        ("index-not-json", &["index.json:1:"]),
        ("no-weights", &["neither model.safetensors"]),
        (
            "pickled-weights",
            &["pytorch_model.bin", "safe_serialization"],
        ),
        (
            "shard-missing",
            &["model-00002-of-00002.safetensors", "missing"],
        ),
        (
            "shard-truncated",
            &["model-00002-of-00002.safetensors", "`b`"],
        ),
        ("tensor-in-two-shards", &["`a`", "as well"]),
        ("tensor-missing", &["`b`", "does not hold"]),
    ];
    let check = |folder: &str, table: &[(&str, &[&str])], open: &dyn Fn(&Path) -> Result<()>| {
        let mut names: Vec<String> = std::fs::read_dir(root.join(folder))
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| p.file_stem().unwrap().to_str().unwrap().to_string())
            .collect();
        names.sort();
        let listed: Vec<&str> = table.iter().map(|t| t.0).collect();
        assert_eq!(names, listed, "{folder}");
        for (name, words) in table {
            let mut path = root.join(folder).join(name);
            if folder == "safetensors" {
                path.set_extension("safetensors");
            }
            let text = open(&path).expect_err(name).to_string();
            for word in [&[*name, "fix:"], *words].concat() {
                assert!(text.contains(word), "{name}: no `{word}` in: {text}");
            }
        }
    };
    check("safetensors", files, &|p| SafeFile::open(p).map(drop));
    check("hf", models, &|p| HfDir::open(p).map(drop));
}

#[test]
fn a_second_writer_of_one_target_is_refused_and_the_first_is_whole() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, config) = (temp.path().join("m"), serde_json::json!({}));
    let one = |v: f32| TensorOut::from_f32("w", Dtype::F32, &[1], vec![v]);
    // While the first writes its tensor, the second comes.
    let slow = TensorOut::stream("w", Dtype::F32, &[1], |out| {
        let second = export_hf(&dir, &config, [one(2.0)], u64::MAX, &[]);
        let text = second.expect_err("two writers").to_string();
        let pid = format!("process {}", std::process::id());
        assert!(
            text.contains("another job writes here") && text.contains(&pid),
            "{text}"
        );
        out.write_all(&1f32.to_le_bytes())
    });
    export_hf(&dir, &config, [slow], u64::MAX, &[]).unwrap();
    let file = SafeFile::open(dir.join("model.safetensors")).unwrap();
    assert_eq!(file.read("w").unwrap(), 1f32.to_le_bytes());
    export_hf(&dir, &config, [one(2.0)], u64::MAX, &[]).unwrap();
    let left: Vec<_> = std::fs::read_dir(temp.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_checkpoint_gets_no_name_in_a_folder_that_was_taken_over() {
    let temp = tempfile::tempdir().unwrap();
    let claim = crossweave_claim::Claim::folder(temp.path(), "train").unwrap();
    let writer = Writer::begin(temp.path(), 1, 1).unwrap();
    let mut rank = writer.rank(0).unwrap();
    rank.put("b", Dtype::F32, &[1], 1f32.to_le_bytes().to_vec());
    rank.owns("p", Dtype::F32, &[1], 0, 1, "b", 0).unwrap();
    rank.finish().unwrap();
    std::fs::remove_file(temp.path().join(crossweave_claim::LOCK)).unwrap();
    let patience = Patience {
        timeout: std::time::Duration::ZERO,
        failed: &|| false,
        claim: Some(&claim),
    };
    let text = writer.commit_when(serde_json::Value::Null, &patience);
    let text = text.expect_err("committed").to_string();
    assert!(text.contains("its lock file was removed"), "{text}");
    assert!(list(temp.path()).unwrap().is_empty());
}
