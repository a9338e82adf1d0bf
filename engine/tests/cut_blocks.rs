//! What layers have between their products, cut over ranks: masks of dropped features and of adapters' inputs, norms over all heads and by
//! heads, key-value heads of fused projections that ranks share, and a vocabulary beside a teacher. Losses, gradients and parameters are those
//! of one rank, with hidden states whole or cut by tokens, in every ZeRO stage, with recompute, rows that are cut, and 16 bits.

use crate::boxes::{Embed, Head, VOCAB, WIDTH};
use crate::common::*;
use crate::vocabulary::gradients;
use crossweave_engine::{RankSpec, Recompute};
use crossweave_hal::DType;
use crossweave_mesh::{Axis, Place};
use crossweave_nn::{Distill, Lora, ModelSpec, Targets, taught};
use crossweave_tensor::{
    Block, Builder, Cx, Distillation, Flow, Init, Lies, Param, Pieces, Result, UnitDecl, dropout_of,
};
use serde_json::{Value, json};

const STEPS: u64 = 5;

/// A model as a test has it: over so many ranks, with adapters or beside a teacher, with hidden states whole or cut by tokens.
#[derive(Clone)]
struct Over {
    model: ModelSpec,
    lora: Option<Lora>,
    teacher: Option<ModelSpec>,
    tp: u32,
    by_tokens: bool,
}

impl Over {
    fn one(model: &ModelSpec) -> Over {
        Over {
            model: model.clone(),
            lora: None,
            teacher: None,
            tp: 1,
            by_tokens: false,
        }
    }
    fn ranks(&self, tp: u32, by_tokens: bool) -> Over {
        Over {
            tp,
            by_tokens,
            ..self.clone()
        }
    }
}

impl Declares for Over {
    fn declare(&self) -> Vec<UnitDecl> {
        let place = Place::on(&[(Axis::Tp, self.tp)], 0).unwrap();
        crossweave_nn::split::check(self.model.model(), self.tp.into()).unwrap();
        let how = Distill {
            loss: Distillation::new(0.6, 1.5),
            stop_step: None,
            rests: true,
        };
        let mut units = match (&self.lora, &self.teacher) {
            (Some(l), _) => l.units(&self.model, &place).unwrap(),
            (_, Some(t)) => taught(self.model.model(), t.model(), &how, &place),
            _ => crossweave_nn::units_over(self.model.model(), &place),
        };
        if self.by_tokens {
            let over = Axis::Tp.into();
            units.iter_mut().for_each(|u| u.hidden_over = over);
        }
        units
    }
}

/// A family of two layers of four heads and one key-value head, or as many as `kv`.
fn family(name: &str, kv: u64, more: &Value) -> ModelSpec {
    let mut config = json!({"model_type": name, "vocab_size": 37, "hidden_size": 24, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": kv, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
        "layer_norm_eps": 1e-5, "initializer_range": 0.1, "tie_word_embeddings": false});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelSpec::from_hf(&config).unwrap()
}

fn olmo2(kv: u64) -> ModelSpec {
    family("olmo2", kv, &json!({}))
}
fn stablelm(kv: u64) -> ModelSpec {
    let more = json!({"qk_layernorm": true, "hidden_size": 32});
    family("stablelm", kv, &more)
}
fn falcon() -> ModelSpec {
    let config = json!({"model_type": "falcon", "vocab_size": 37, "hidden_size": 32, "ffn_hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "multi_query": true, "max_position_embeddings": 16, "initializer_range": 0.1});
    ModelSpec::from_hf(&config).unwrap()
}
fn dropping(kv: u64) -> ModelSpec {
    with(
        &family("llama", kv, &json!({})),
        &[("attention_dropout", 0.1)],
    )
}

fn adapters(dropout: f64) -> Lora {
    Lora {
        r: 3,
        alpha: 7.0,
        dropout,
        rslora: false,
        targets: Targets::AllLinear,
        parameters: vec![],
    }
}

fn rows(dp: u32, micro: u32) -> RankSpec {
    of_length(spec(dp, micro), 8)
}

/// Losses, gradients of each tensor and trained parameters over 2 and 4 ranks, whole and by tokens, by ZeRO stage and recompute, against one rank.
fn as_on_one_rank(w: &World, what: &str, model: &Over, tokens: bool) {
    let s = rows(1, 1);
    let [(whole, all, _)] = &gradients(w, model, &s)[..] else {
        panic!("one rank");
    };
    let norm = all.iter().flat_map(|(_, g)| g);
    let norm = norm.map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    for tp in [2, 4] {
        let ranks = gradients(w, &model.ranks(tp, false), &cut_over(s.clone(), tp));
        for (loss, own, held) in ranks {
            assert!((loss - whole).abs() < 1e-6 * whole, "{what} over {tp}");
            for ((name, got), (of, want)) in own.iter().zip(all) {
                assert_eq!(name, of);
                let want = held[name].part.take(want);
                let size =
                    |all: &mut dyn Iterator<Item = f64>| all.map(|x| x * x).sum::<f64>().sqrt();
                let top = size(&mut want.iter().map(|v| f64::from(*v))).max(1e-3 * norm);
                let both = got.iter().zip(&want).map(|(a, b)| f64::from(a - b));
                let far = size(&mut both.into_iter());
                assert!(
                    far <= 2e-6 * top,
                    "{what} over {tp}, {name}: {far:e} of {top:e}"
                );
            }
        }
    }
    let alone = train(w, model, &sgd(rows(1, 2)), STEPS);
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    let mut k = 0;
    for (dp, tp) in [(1, 2), (1, 4), (2, 2)] {
        for by_tokens in [false, true].into_iter().filter(|t| tokens || !*t) {
            for stage in [[0, 3], [1, 2]][k % 2] {
                k += 1;
                let s = RankSpec {
                    recompute: recompute[k % 3],
                    ..sgd(staged(rows(dp, [2, 1][k % 2]), stage))
                };
                let cut = model.ranks(tp, by_tokens);
                let far = distance(&train(w, &cut, &cut_over(s, tp), STEPS), &alone);
                let how = format!("dp {dp}, tp {tp}, by tokens {by_tokens}, stage {stage}");
                assert!(far < 1e-5, "{what}, {how}: {far:e}");
            }
        }
    }
}

/// Over 16 bits a cut model is no further from f32 than half as much again as one rank is.
fn in_16_bits(w: &World, what: &str, model: &Over) {
    let s = sgd(rows(1, 1));
    let exact = train(w, model, &s, STEPS);
    let bf16 = RankSpec {
        compute: DType::Bf16,
        ..s
    };
    let far = |o: &Outcome| apart(o, &exact, |_| true).norm;
    let alone = far(&train(w, model, &bf16, STEPS));
    for (tp, by_tokens) in [(2, false), (4, false), (2, true)] {
        let cut = model.ranks(tp, by_tokens);
        let got = far(&train(w, &cut, &cut_over(bf16.clone(), tp), STEPS));
        assert!(
            got <= 1.5 * alone,
            "{what} over {tp}: {got:e} and {alone:e}"
        );
    }
}

/// One scale of all heads of queries and keys, whose squares are summed over the ranks; one key-value head that is on every rank; and one that
/// is not.
#[test]
fn norms_over_all_heads_are_those_of_one_rank() {
    let w = world();
    for kv in [1, 4] {
        as_on_one_rank(&w, &format!("{kv} heads"), &Over::one(&olmo2(kv)), true);
    }
    in_16_bits(&w, "olmo2", &Over::one(&olmo2(2)));
}

/// A parameter for each head, of which every rank has all and uses those of its own heads.
#[test]
fn norms_of_single_heads_are_those_of_one_rank() {
    let w = world();
    for kv in [1, 4] {
        as_on_one_rank(&w, &format!("{kv} heads"), &Over::one(&stablelm(kv)), true);
    }
    in_16_bits(&w, "stablelm", &Over::one(&stablelm(2)));
}

/// Norms beside rows that are cut: their sums are over the ranks of their heads only.
#[test]
fn norms_over_ranks_meet_rows_that_are_cut() {
    let w = world();
    for model in [olmo2(4), stablelm(4), olmo2(1), falcon()] {
        let alone = train(&w, &Over::one(&model), &sgd(rows(1, 2)), STEPS);
        for by_tokens in [false, true] {
            let cut = Rows(model.clone(), by_tokens);
            let s = over(sgd(rows(1, 2)), [2, 2]);
            let far = distance(&train(&w, &cut, &s, STEPS), &alone);
            assert!(far < 1e-5, "{}: {far:e}", model.family().name);
        }
    }
}

/// A model over two ranks of tensor parallelism whose rows are cut over two more.
struct Rows(ModelSpec, bool);

impl Declares for Rows {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut units = Over::one(&self.0).ranks(2, self.1).declare();
        units.iter_mut().for_each(|u| u.rows.causal = true);
        units
    }
}

/// Falcon 7B's: queries, one key and one value of one product. Each rank computes a part of the head, and they are gathered.
#[test]
fn one_key_value_head_of_a_fused_projection_is_shared() {
    let w = world();
    as_on_one_rank(&w, "falcon", &Over::one(&falcon()), true);
    in_16_bits(&w, "falcon", &Over::one(&falcon()));
    let lora = Over {
        lora: Some(adapters(0.1)),
        ..Over::one(&falcon())
    };
    as_on_one_rank(&w, "falcon with adapters", &lora, true);
}

/// Dropped weights and features where several ranks have the same key-value head.
#[test]
fn masks_beside_shared_heads_are_those_of_one_rank() {
    let w = world();
    as_on_one_rank(&w, "shared heads", &Over::one(&dropping(1)), true);
    let cut = Over::one(&dropping(4));
    let alone = train(&w, &Over::one(&dropping(1)), &sgd(rows(1, 1)), 1);
    let other = train(
        &w,
        &Over::one(&family("llama", 1, &json!({}))),
        &sgd(rows(1, 1)),
        1,
    );
    assert!(distance(&alone, &other) > 1e-3, "nothing is dropped");
    as_on_one_rank(&w, "heads apart", &cut, true);
}

/// What goes into adapters: hidden states, whole or some of their tokens, and parts of the inner width and of heads.
#[test]
fn masks_of_adapters_are_those_of_one_rank() {
    let w = world();
    let gpt2 = with(
        &gpt2(2, 0.1),
        &[("n_head", 4), ("n_embd", 24), ("n_inner", 48)],
    );
    for model in [gpt2, dropping(1), dropping(4)] {
        let with_them = |dropout| Over {
            lora: Some(adapters(dropout)),
            ..Over::one(&model)
        };
        let name = model.family().name;
        as_on_one_rank(&w, name, &with_them(0.3), true);
        let [some, none] = [0.3, 0.0].map(|p| train(&w, &with_them(p), &sgd(rows(1, 1)), 2));
        assert!(distance(&some, &none) > 1e-4, "{name}: nothing is dropped");
    }
}

/// An MLP that drops within: of the inner width each rank has a part.
struct Dropping {
    up: Param,
    down: Param,
    lies: Lies,
}

impl Block for Dropping {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        let x = f.0[0];
        let n = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(n, self.up, None)?;
        let h = cx.silu(h)?;
        let h = dropout_of(cx, h, 0.4, self.lies)?;
        let d = cx.linear(h, self.down, None)?;
        let d = cx.reduce(d, Axis::Tp)?;
        Ok(Flow(vec![cx.add(x, d)?]))
    }
}

/// A table, the block of an inner width, and a head.
struct Inner(u64);

impl Declares for Inner {
    fn declare(&self) -> Vec<UnitDecl> {
        let (mut b, normal) = (Builder::default(), Init::Normal(0.5));
        b.unit("embed", |u| {
            Embed(u.param("weight", &[VOCAB, WIDTH], normal))
        });
        b.unit("layers.0", |u| {
            let up = u.param("up", &[self.0, WIDTH], normal);
            let down = u.param("down", &[WIDTH, self.0], normal);
            Dropping {
                up: u.split(up, Axis::Tp, 0, Pieces::One),
                down: u.split(down, Axis::Tp, 1, Pieces::One),
                lies: Lies::Columns(Axis::Tp),
            }
        });
        b.unit("head", |u| Head(u.param("weight", &[VOCAB, WIDTH], normal)));
        b.finish()
    }
}

/// Masks of parts of tokens, of widths and lengths that are whole blocks of four numbers and that are not.
#[test]
fn masks_of_an_inner_width_are_those_of_one_rank() {
    let w = world();
    for (width, tokens) in [(24, 8), (36, 7), (12, 5), (60, 6)] {
        let model = Inner(width);
        let s = |dp, micro| sgd(of_length(spec(dp, micro), tokens));
        let alone = train(&w, &model, &s(1, 1), STEPS);
        for (dp, tp, micro) in [(1, 2, 1), (1, 3, 2), (2, 2, 1), (1, 6, 1), (1, 4, 3)] {
            let got = train(&w, &model, &cut_over(s(dp, micro), tp), STEPS);
            let far = distance(&got, &alone);
            assert!(far < 1e-5, "{width} over {tp}, {tokens} tokens: {far:e}");
        }
    }
}

/// Student and teacher have the same rows of the vocabulary, of sizes that the ranks divide and do not; layers of a teacher whose heads they do not
/// divide are whole.
#[test]
fn a_teacher_teaches_over_a_vocabulary_that_is_cut() {
    let w = world();
    let student = with(
        &gpt2(2, 0.0),
        &[("n_head", 4), ("n_embd", 24), ("n_inner", 48)],
    );
    for (what, teacher) in [
        ("its heads divided", family("llama", 4, &json!({}))),
        ("its heads not divided", gpt2(1, 0.0)),
        ("its vocabulary tied", with(&student, &[("n_embd", 32)])),
    ] {
        for vocab in [37, 40] {
            let [student, teacher] =
                [&student, &teacher].map(|m| with(m, &[("vocab_size", vocab)]));
            let model = Over {
                teacher: Some(teacher),
                ..Over::one(&student)
            };
            as_on_one_rank(&w, &format!("{what}, {vocab} rows"), &model, false);
        }
    }
    let model = Over {
        teacher: Some(family("llama", 4, &json!({}))),
        ..Over::one(&student)
    };
    let counts = |q: u64, i: u64| !(q + i).is_multiple_of(3) && q != 2;
    let alone = train_with_counts(&w, &model, &sgd(rows(1, 2)), STEPS, counts);
    for tp in [2, 4] {
        let s = cut_over(sgd(rows(1, 2)), tp);
        let got = train_with_counts(&w, &model.ranks(tp, false), &s, STEPS, counts);
        let far = distance(&got, &alone);
        assert!(far < 1e-5, "tp {tp}: {far:e}");
    }
}

/// The loss beside a teacher sums three numbers a rank and one more of each token, and one of all.
#[test]
fn a_teacher_costs_a_few_numbers_a_token() {
    let w = world();
    let student = with(
        &gpt2(2, 0.0),
        &[("n_head", 4), ("n_embd", 24), ("n_inner", 48)],
    );
    let sent = |teacher: Option<ModelSpec>, tp: u32| -> u64 {
        let model = Over {
            teacher,
            ..Over::one(&student)
        };
        let s = cut_over(rows(1, 1), tp);
        let got = train(&w, &model.ranks(tp, false), &s, 2);
        let of = got.ledgers[0].collectives.iter();
        let of = of.filter(|c| of_blocks(c, "tp"));
        of.map(|c| c.elements).sum()
    };
    // A teacher of one layer whose two heads are not divided sums its lookup only.
    let (steps, tokens, tp) = (2, GLOBAL * 8, 4);
    let more = sent(Some(gpt2(1, 0.0)), tp) - sent(None, tp);
    let of_logs = tokens * (2 * u64::from(tp)) + 1;
    assert_eq!(more, steps * (tokens * 18 + of_logs));
}

/// With w = bsh (t-1)/t and n = bs (t-1)/t: a layer whose norms are over all heads 8w + 8n, one with a scale for each head 8w and twice the scales,
/// one with a key-value head that all ranks share 8w + 4nd, and one of one normed input and such a head of a fused projection 4w + 4nd; the table
/// and the head 2w each. By tokens 10w, 5w, 2w and 3w.
#[test]
fn what_stands_between_products_says_what_is_counted() {
    let w = world();
    let (layers, micro) = (2, 2);
    for (tp, by_tokens) in [(2, false), (4, false), (2, true), (4, true)] {
        let ranks = u64::from(tp);
        let part = |n: u64| n * (ranks - 1) / ranks;
        let s = rows(1, micro);
        let n = s.rows.batch * s.rows.seq_len;
        for (model, wide, more) in [
            (olmo2(4), [8, 10], 8 * part(n)),
            (stablelm(4), [8, 10], 2 * part(4 * 8)),
            (family("llama", 1, &json!({})), [8, 10], 4 * part(n * 6)),
            (falcon(), [4, 5], 4 * part(n * 8)),
        ] {
            let cut = Over::one(&model).ranks(tp, by_tokens);
            let got = train(&w, &cut, &cut_over(s.clone(), tp), STEPS);
            let hidden = part(n * model.model().width);
            let loss = 2 * part(n * (ranks + 1));
            let ends = [4, 5][usize::from(by_tokens)];
            let wide = wide[usize::from(by_tokens)];
            let all = layers * (wide * hidden + more) + ends * hidden + loss;
            for l in &got.ledgers {
                let of = l.collectives.iter();
                let of = of.filter(|c| of_blocks(c, "tp"));
                let sent: u64 = of.map(|c| c.wire_elements).sum();
                let name = model.family().name;
                let how = format!("{name} over {tp}, by tokens {by_tokens}");
                assert_eq!(sent, STEPS * u64::from(micro) * all, "{how}");
            }
        }
    }
}

/// An adapter of a head that every rank has whole is given all tokens, where those of hidden states are cut.
#[test]
fn masks_of_a_whole_heads_adapter_are_those_of_one_rank() {
    let w = world();
    let keys = [
        ("vocab_size", 41),
        ("n_head", 8),
        ("n_embd", 24),
        ("n_inner", 48),
    ];
    let model = Over {
        lora: Some(Lora {
            targets: Targets::Names(vec!["lm_head".into()]),
            ..adapters(0.3)
        }),
        ..Over::one(&with(&gpt2(1, 0.0), &keys))
    };
    assert!(!crossweave_nn::split::vocabulary(model.model.model(), 8));
    let alone = train(&w, &model, &sgd(rows(1, 1)), STEPS);
    for by_tokens in [false, true] {
        let s = cut_over(sgd(rows(1, 1)), 8);
        let far = distance(&train(&w, &model.ranks(8, by_tokens), &s, STEPS), &alone);
        assert!(far < 1e-5, "by tokens {by_tokens}: {far:e}");
    }
}
