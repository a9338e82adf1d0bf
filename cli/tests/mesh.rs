//! `crossweave mesh show`, for meshes that train and those that do not yet.

use crate::common;
use common::{CONFIG, Scratch};
use serde_json::Value;

fn show(s: &Scratch, ranks: &str, sets: &[&str], rest: &[&str]) -> String {
    let mut args = vec!["mesh", "show", "c.json", "--ranks", ranks];
    args.extend(sets.iter().flat_map(|set| ["--set", *set]));
    args.extend(rest);
    s.ok(&args)
}

fn scratch() -> Scratch {
    let s = Scratch::new();
    s.write("c.json", CONFIG);
    s
}

#[test]
fn the_map_and_every_group_are_printed() {
    let s = scratch();
    let text = show(&s, "8", &["mesh.pp=2", "mesh.tp=2"], &[]);
    let want = "\
8 ranks: pp2 x dp2 x tp2; order pp, dp, cp, tp

  rank    pp    dp    cp    tp
     0     0     0     0     0
     1     0     0     0     1
     2     0     1     0     0
     3     0     1     0     1
     4     1     0     0     0
     5     1     0     0     1
     6     1     1     0     0
     7     1     1     0     1

pp: 4 groups of 2 ranks; hidden states and their gradients from stage to stage
    0,4  1,5  2,6  3,7

tp: 4 groups of 2 ranks; pieces of one layer: sums inside blocks
    0,1  2,3  4,5  6,7

dp: 4 groups of 2 ranks; other samples; ZeRO of dense parameters: gradients, gathers
    0,2  1,3  4,6  5,7

pp.dp.tp: 1 group of 8 ranks; norm, loss and verdicts of all ranks
    0-7
";
    assert_eq!(text.trim_end(), want.trim_end());
    // Experts are carved from the ranks of a stage, and add none.
    let folded = ["mesh.tp=2", "mesh.ep=4", "mesh.etp=1"];
    let text = show(&s, "8", &folded, &[]);
    for part in [
        "8 ranks: dp4 x tp2; experts edp2 x ep4; order",
        "  rank    pp    dp    cp    tp   edp    ep   etp\n",
        "     5     0     2     0     1     1     1     0\n",
        "ep: 2 groups of 4 ranks; tokens to their experts and back\n    0-3  4-7",
        "edp: 4 groups of 2 ranks; ZeRO of experts: gradients, gathers\n    0,4  1,5  2,6  3,7",
        "tp: 4 groups",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("\netp:"), "{text}");
    let alone = show(&s, "1", &[], &[]);
    assert!(alone.starts_with("1 rank: 1 rank; order"), "{alone}");
    // The product of the axes is the default, and neither a model nor data are looked for.
    s.write(
        "bare.json",
        r#"{"mesh": {"dp": 3, "cp": 2}, "model": {"hf": "nowhere"}}"#,
    );
    let text = s.ok(&["mesh", "show", "bare.json"]);
    assert!(text.starts_with("6 ranks: dp3 x cp2;"), "{text}");
    assert!(
        text.contains("dp.cp: 1 group of 6 ranks; ZeRO of dense parameters"),
        "{text}"
    );
}

/// `--hosts` gives each rank its host and each set of groups the hosts over which it lies, and a note names cut layers that leave a host.
#[test]
fn groups_over_hosts_are_said() {
    let s = scratch();
    let show = |order: &str, rest: &[&str]| {
        let order = format!("mesh.order={order:?}");
        let sets = ["--set", "mesh.tp=2", "--set", "mesh.pp=2", "--set", &order];
        let args = ["mesh", "show", "c.json", "--hosts", "2x4"];
        s.ok(&[&args[..], &sets, rest].concat())
    };
    let text = show("pp,dp,cp,tp", &[]);
    for part in [
        "8 ranks: pp2 x dp2 x tp2; order pp, dp, cp, tp; 2 hosts",
        "  rank    pp    dp    cp    tp  host\n     0     0     0     0     0     0\n",
        "     4     1     0     0     0     1\n",
        "pp: 4 groups of 2 ranks over 2 hosts; ",
        "tp: 4 groups of 2 ranks within a host; ",
        "pp.dp.tp: 1 group of 8 ranks over 2 hosts; ",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("note: "), "{text}");
    let text = show("tp,dp,cp,pp", &[]);
    let note = "note: mesh.tp: a group that sums inside every block lies on several hosts (rank 0 is on host 0, rank 4 on host 1)";
    assert!(text.contains(note), "{text}");
    let v: Value = serde_json::from_str(&show("tp,dp,cp,pp", &["--json"])).expect("json");
    assert_eq!(
        (&v["hosts"], &v["ranks"][5]["host"]),
        (&2.into(), &1.into())
    );
    assert_eq!(v["notes"].as_array().map(Vec::len), Some(1));
    for set in v["sets"].as_array().expect("sets") {
        let over = if set["axes"].as_str().is_some_and(|a| a.contains("tp")) {
            2
        } else {
            1
        };
        assert_eq!(set["hosts"], over, "{set}");
    }
    s.refused(
        &["mesh", "show", "c.json", "--ranks", "6", "--hosts", "4"],
        &["--hosts 4: the job has 6 ranks", "give --hosts 3x2"],
        &[],
    );
}

#[test]
fn as_json_and_as_a_drawing() {
    let s = scratch();
    let sets = [
        "mesh.order=\"tp,dp\"",
        "mesh.tp=2",
        "mesh.ep=2",
        "mesh.etp=1",
    ];
    let text = show(&s, "6", &sets, &["--json", "--svg", "m.svg"]);
    let v: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(v["world"], 6);
    assert_eq!(v["order"], serde_json::json!(["tp", "dp", "pp", "cp"]));
    assert_eq!(v["lengths"]["edp"], 3);
    let ranks = v["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 6);
    assert_eq!((&ranks[4]["tp"], &ranks[4]["dp"]), (&1.into(), &1.into()));
    for set in v["sets"].as_array().expect("sets") {
        let mut all: Vec<u64> = set["groups"]
            .as_array()
            .expect("groups")
            .iter()
            .flat_map(|g| {
                let g = g.as_array().expect("members");
                g.iter().map(|r| r.as_u64().expect("a rank"))
            })
            .collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5], "{set}");
    }
    let tp = v["sets"]
        .as_array()
        .expect("sets")
        .iter()
        .find(|s| s["axes"] == "tp");
    assert_eq!(
        tp.expect("tp")["groups"],
        serde_json::json!([[0, 3], [1, 4], [2, 5]])
    );
    let svg = std::fs::read_to_string(s.path("m.svg")).expect("a drawing");
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert_eq!(svg.matches("stroke=").count(), 6);
    assert!(svg.contains(">edp 2 ep 1<"), "{svg}");
    // A drawing is replaced, anything else is not.
    show(&s, "6", &sets, &["--svg", "m.svg"]);
    s.refused(
        &["mesh", "show", "c.json", "--svg", "c.json"],
        &["holds something else"],
        &[],
    );
}

#[test]
fn what_does_not_divide_is_refused_with_the_key_and_what_to_set() {
    let s = scratch();
    for (ranks, set, parts) in [
        (
            "6",
            "mesh.tp=4",
            [
                "mesh.tp",
                "6 ranks cannot be divided over 4 tensor-parallel ranks",
                "--ranks 8",
            ],
        ),
        (
            "6",
            "mesh.dp=4",
            [
                "mesh.dp",
                "mesh.dp 4 is not the number of ranks, 6",
                "--ranks 4",
            ],
        ),
        (
            "6",
            "mesh.ep=4",
            ["mesh.ep", "4 does not divide the 6 places", "set it to 3"],
        ),
        (
            "6",
            "mesh.etp=5",
            [
                "mesh.etp",
                "do not divide the 6 ranks of a stage",
                "set it to 6",
            ],
        ),
        (
            "6",
            "mesh.order=\"dp,ep\"",
            ["mesh.order", "ep is an axis of experts", "pp,dp,cp,tp"],
        ),
        (
            "6",
            "mesh.order=\"dp,xp\"",
            ["mesh.order", "'xp' is not a mesh axis", "pp,dp,cp,tp"],
        ),
    ] {
        let args = ["mesh", "show", "c.json", "--ranks", ranks, "--set", set];
        s.refused(&args, &parts, &[]);
    }
    // What the trainer does not do yet, or not with this model, it says, where `mesh show` draws it.
    for (set, what) in [
        ("mesh.ep=2", "the model has no experts"),
        ("mesh.etp=2", "the model has no experts"),
    ] {
        show(&s, "4", &[set], &[]);
        let args = [
            "config",
            "check",
            "c.json",
            "--ranks",
            "4",
            "--no-files",
            "--set",
            set,
        ];
        s.refused(&args, &[what], &[]);
    }
}

#[test]
fn a_program_names_the_group_of_a_stage_by_its_axis() {
    let s = scratch();
    // Its members are those of the order.
    let args = [
        "plan",
        "c.json",
        "--ranks",
        "4",
        "--set",
        "mesh.pp=2",
        "--set",
        "mesh.order=\"dp,pp\"",
        "--program",
        "--rank",
        "2",
    ];
    let text = s.ok(&args);
    for part in [
        "group dp: rank 1 of 2",
        "group pp: rank 0 of 2",
        "group pp.dp: rank 2 of 4",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}
