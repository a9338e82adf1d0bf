//! From `model` of a config, or a Hugging Face folder, to the units the engine runs and the weights they start from.

use crate::adapter::{self, Adapter};
use crate::caches::Caches;
use crate::error::{JobError, Result};
use crate::hub::{self, Part};
use crate::stacks;
use crossweave_checkpoint::{Checkpoint, HfDir, Resolved as Names, Resolver};
use crossweave_config as config;
use crossweave_data::{Columns, Remark};
use crossweave_mesh::{Axis, Place};
use crossweave_nn::distill::Distill;
use crossweave_nn::written::{TOKEN_IDS, is_token};
use crossweave_nn::{Lora, ModelSpec, split, taught, units, units_over};
use crossweave_tensor::UnitDecl;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A Hugging Face folder whose every tensor has been matched with a parameter.
pub struct Folder {
    /// The folder.
    pub dir: HfDir,
    /// Which tensor is which parameter.
    pub names: Names,
    /// It holds the experts of a layer as stacks, and so does what is written of it.
    pub stacked: bool,
}

/// What a student learns from.
pub struct Teacher {
    /// Family and dimensions.
    pub spec: ModelSpec,
    /// Where its weights are.
    pub folder: Folder,
    /// How it teaches.
    pub how: Distill,
}

/// A change that a program makes to the units that a config declares, such as a block of its own in the place of one of them. It is called for every
/// rank, and gives every one the same.
pub type OwnUnits = Arc<dyn Fn(Vec<UnitDecl>) -> Vec<UnitDecl> + Send + Sync>;

/// A model ready to be built on any number of ranks.
pub struct Source {
    /// Family and dimensions.
    pub spec: ModelSpec,
    /// Where the weights come from; `None` = a checkpoint, else drawn from the seed.
    pub folder: Option<Folder>,
    /// The checkpoint of a run that the weights come from.
    pub checkpoint: Option<Checkpoint>,
    /// What is trained instead of the folder's weights.
    pub lora: Option<Lora>,
    /// Where its values come from; `None` = drawn from the seed.
    pub adapter: Option<Adapter>,
    /// A hash of the folder's weights, where something is trained beside them.
    pub fingerprint: Option<String>,
    /// What it learns from.
    pub teacher: Option<Teacher>,
    /// A program's change of its units.
    pub own: Option<OwnUnits>,
}

fn key_error(file: &Path, e: &crossweave_nn::ConfigError) -> JobError {
    JobError::refused(
        format!("{}: {}: {}", file.display(), e.key, e.what),
        "give the config.json of a model of these features only",
    )
}

/// Opens a model folder.
///
/// # Errors
/// Missing or damaged files; a family or feature that is not available; names or shapes that do not match, all at once.
pub fn open_folder(dir: &Path) -> Result<Source> {
    if adapter::is_folder(dir) {
        let described = adapter::describe(dir)?;
        let mut source = open_folder(&described.base)?;
        source.adapt(described.lora, &format!("{}: ", described.file.display()))?;
        let units = source.units();
        let base = source.folder.as_ref().map(|folder| {
            let (head, names) = (&source.spec.model().head, &folder.names);
            let table = source.spec.model().table();
            let file_name = move |name: &str| {
                let tied = head.tied && name.strip_suffix(".weight") == Some(head.lm);
                names
                    .file_name(if tied { &table } else { name })
                    .map(str::to_string)
            };
            (&folder.dir, file_name)
        });
        if let Some((folder, file_name)) = &base {
            let base = adapter::Base {
                dir: folder,
                file_name,
            };
            source.adapter = Some(adapter::open(dir, &units, &base)?);
        }
        return Ok(source);
    }
    let mut dir = HfDir::open(dir)?;
    let file = dir.path.join("config.json");
    let spec = ModelSpec::from_hf(&dir.config).map_err(|e| key_error(&file, &e))?;
    // Declarations are only numbers, but a table of positions is made with them: a damaged size must not ask for one that no file
    // could have been trained with.
    let positions = spec.model().positions;
    if positions > 1 << 24 {
        return Err(JobError::refused(
            format!("{}: {positions} positions cannot be real", file.display()),
            "restore config.json from the model's source",
        ));
    }
    let expected = units(spec.model())
        .into_iter()
        .flat_map(|u| u.params)
        .map(|p| {
            let shape = p.shape.dims().iter().map(|d| *d as usize).collect();
            (p.name, shape)
        });
    let expected: Vec<(String, Vec<usize>)> = expected.collect();
    let tensors = &spec.family().tensors;
    let stacked = stacks::gather(&mut dir, tensors, spec.model().base, &expected)?;
    let mut resolver = Resolver::new(expected)
        .base(spec.model().base)
        .ignore(tensors.ignored)
        .within(tensors.within);
    for (copy, of) in tensors.copies {
        resolver = resolver.tie(*copy, *of);
    }
    if spec.model().head.tied {
        let head = format!("{}.weight", spec.model().head.lm);
        resolver = resolver.tie(head, spec.model().table());
    }
    // A bias that stands beside the layer may be stored in it too.
    if let Some(bias) = spec.model().head.bias {
        let inner = format!("{}.bias", spec.model().head.lm);
        if inner != bias {
            resolver = resolver.tie(inner, bias);
        }
    }
    let mut names = resolver.resolve(&dir)?;
    let family = spec.family().name;
    if let Some(outer) = dir.config["model_type"]
        .as_str()
        .filter(|outer| *outer != family)
    {
        names.notes.push(format!(
            "of this {outer} model the language model alone is read, given tokens only, and what is saved is a {family} model"
        ));
    }
    Ok(Source {
        spec,
        folder: Some(Folder {
            dir,
            names,
            stacked,
        }),
        checkpoint: None,
        lora: None,
        adapter: None,
        fingerprint: None,
        teacher: None,
        own: None,
    })
}

/// The model a config asks for; `vocab` is the tokenizer's, taken where the config gives none.
///
/// # Errors
/// As [`open_folder`]; a vocabulary nobody knows.
pub fn of_config(model: &config::Model, vocab: Option<u64>, caches: &Caches) -> Result<Source> {
    let vocab_of = |given: Option<u64>| {
        given.or(vocab).ok_or_else(|| {
            JobError::refused(
                "model.vocab_size: not given, and there is no tokenizer to take it from",
                "add \"vocab_size\" to \"model\"",
            )
        })
    };
    match model {
        config::Model::Hf(m) => {
            let mut source = open_folder(&hub::folder(&m.hf, "model.hf", Part::Model, caches)?)?;
            match (&m.lora, &source.adapter) {
                (Some(_), Some(a)) => {
                    return Err(JobError::refused(
                        format!(
                            "model.lora: {} is an adapter, whose own adapter_config.json says what is trained",
                            a.dir.display()
                        ),
                        "remove model.lora to train that adapter on, or name the model's folder to begin a new one",
                    ));
                }
                (Some(l), None) => {
                    source.adapt(adapter::of_config(l), "model.lora.")?;
                }
                (None, _) => {}
            }
            if m.parts.is_some() && source.spec.model().vision.is_none() {
                let family = source.spec.family().name;
                return Err(JobError::refused(
                    format!("model.parts: a {family} model is one part"),
                    "remove it; parameters by their names have groups of their own in optimizer.param_groups",
                ));
            }
            let keys = ["embd_pdrop", "resid_pdrop", "attn_pdrop"];
            let given = [m.embd_pdrop, m.resid_pdrop, m.attn_pdrop];
            source.spec = source.spec.with_dropout(given).map_err(|(i, e)| {
                JobError::refused(format!("model.{}: {}", keys[i], e.what), "remove it")
            })?;
            Ok(source)
        }
        config::Model::New(m) => {
            let spec = m.spec(Some(vocab_of(m.vocab_size())?)).map_err(|e| {
                JobError::refused(
                    format!("model.{}: {}", e.key, e.what),
                    "change one of the two",
                )
            })?;
            Ok(Source {
                spec,
                folder: None,
                checkpoint: None,
                lora: None,
                adapter: None,
                fingerprint: None,
                teacher: None,
                own: None,
            })
        }
    }
}

impl Source {
    /// What is to be said of its folder, and of its teacher's: keys and tensors that change nothing.
    pub fn remarks(&self) -> Vec<Remark> {
        let own = self.folder.as_ref().map(|f| (f, &self.spec));
        let teacher = self.teacher.as_ref().map(|t| (&t.folder, &t.spec));
        let each = own.into_iter().chain(teacher);
        let of = |(folder, spec): (&Folder, &ModelSpec)| {
            let dir = &folder.dir.path;
            let told = |w| format!("{}: {w}", dir.join("config.json").display());
            let unread = spec.warning().map(|w| Remark::Warning(told(w)));
            let unused = folder.names.unused_note();
            let unused = unused.map(|n| Remark::Note(format!("{}: {n}", dir.display())));
            unread.into_iter().chain(unused)
        };
        each.flat_map(of).collect()
    }
    /// Width of the residual stream.
    pub fn width(&self) -> u64 {
        self.spec.model().width
    }

    /// From now on rows hold what an encoder reads and what a decoder reads, or two texts.
    ///
    /// # Errors
    /// Rows that the model does not read.
    pub fn reads(&mut self, columns: Option<Columns>) -> Result<()> {
        let begun = self.folder.is_none() && self.checkpoint.is_none();
        if begun && matches!(columns, Some(Columns::Pair(p)) if p.labelled) {
            // A new model has what its data ask for.
            self.spec = self.spec.answering().unwrap_or_else(|| self.spec.clone());
        }
        let (model, family) = (self.spec.model(), self.spec.family().name);
        let has = model.decoder.is_some();
        match (columns, model.stack.embed.kinds) {
            (Some(Columns::Both([read, _])), _) if has => {
                self.spec = self.spec.reading(read as u64);
            }
            (Some(Columns::Pair(p)), Some(kinds)) => {
                if u64::from(p.kinds) > kinds.rows {
                    return Err(JobError::refused(
                        format!(
                            "token_type_ids: the data have {} kinds of token, and type_vocab_size of the model is {}",
                            p.kinds, kinds.rows
                        ),
                        "number the texts of a row from 0 on",
                    ));
                }
                if p.labelled && model.head.pair.is_none() {
                    return Err(JobError::refused(
                        format!(
                            "data.next_sentence, next_sentence_label: this {family} has no head that says whether a text follows another"
                        ),
                        "leave it out, or name a folder whose model has that head (BertForPreTraining)",
                    ));
                }
                self.spec = self.spec.pairing(p.tokens as u64, p.labelled);
            }
            (None, _) if !has => {}
            _ => {
                return Err(JobError::refused(
                    format!(
                        "data.objective: rows of these data are not what a {family} model reads"
                    ),
                    "remove data.objective",
                ));
            }
        }
        Ok(())
    }

    /// From now on rows hold so many images each.
    ///
    /// # Errors
    /// A model that does not read what rows hold.
    pub fn sees(&mut self, images: Option<u64>, r: &config::Resolved) -> Result<()> {
        let Some(n) = images.filter(|_| self.spec.model().vision.is_some()) else {
            return Ok(());
        };
        if r.settings.run.balance() == Some(config::Balance::Speed) {
            return Err(JobError::refused(
                "run.balance: the speed of ranks is found on text, and this model reads images",
                "write \"even\", or a number for each rank",
            ));
        }
        if let config::Data::Tokens(d) = &r.data
            && (d.reset_attention_mask == Some(true) || d.reset_position_ids == Some(true))
        {
            return Err(JobError::refused(
                "data.reset_attention_mask, data.reset_position_ids: a row with images is one document",
                "remove them",
            ));
        }
        self.spec = self.spec.seeing(n);
        Ok(())
    }

    /// The units, declared anew (each rank owns its blocks).
    pub fn units(&self) -> Vec<UnitDecl> {
        self.units_on(&Place::alone())
    }

    /// The same with the layers and the vocabulary cut over the ranks that share them with the one at a place.
    pub fn units_on(&self, place: &Place) -> Vec<UnitDecl> {
        let declared = self.declared(place);
        match &self.own {
            Some(own) => own(declared),
            None => declared,
        }
    }

    fn declared(&self, place: &Place) -> Vec<UnitDecl> {
        if let Some(teacher) = &self.teacher {
            return taught(self.spec.model(), teacher.spec.model(), &teacher.how, place);
        }
        // Its targets were found when it was asked for.
        let adapted = self.lora.as_ref();
        let adapted = adapted.and_then(|l| l.units(&self.spec, place).ok());
        adapted.unwrap_or_else(|| units_over(self.spec.model(), place))
    }

    /// Is its vocabulary cut with its layers?
    pub fn cuts_vocabulary(&self, place: &Place) -> bool {
        split::vocabulary(self.spec.model(), place.length(Axis::Tp).into())
    }

    /// Refuses a mesh over which its layers cannot be cut.
    ///
    /// # Errors
    /// Sizes that are not divided; what is not cut yet.
    pub fn may_cut(&self, place: &Place) -> Result<()> {
        let tp = place.length(Axis::Tp).into();
        if self.own.is_some() && tp > 1 {
            return Err(JobError::refused(
                "mesh.tp: units of the program are not cut over ranks",
                "set it to 1",
            ));
        }
        let may = split::check(self.spec.model(), tp);
        may.map_err(|e| JobError::refused(format!("mesh.tp: {}", e.what), e.fix))?;
        let ep = place.length(Axis::Ep).into();
        if self.own.is_some() && ep > 1 {
            return Err(JobError::refused(
                "mesh.ep: units of the program have all experts on each rank",
                "set it to 1",
            ));
        }
        let may = split::experts(self.spec.model(), ep);
        may.map_err(|e| JobError::refused(format!("mesh.ep: {}", e.what), e.fix))?;
        let etp = place.length(Axis::Etp).into();
        let may = split::parts_of_experts(self.spec.model(), etp);
        may.map_err(|e| JobError::refused(format!("mesh.etp: {}", e.what), e.fix))
    }

    /// From now on adapters are trained, and the weights stay. `whose` stands before a key of theirs in messages.
    ///
    /// # Errors
    /// Targets that are not there; weights that cannot be read.
    pub fn adapt(&mut self, lora: Lora, whose: &str) -> Result<()> {
        lora.units(&self.spec, &Place::alone())
            .map_err(|e| JobError::refused(format!("{whose}{}: {}", e.key, e.what), e.fix))?;
        self.lora = Some(lora);
        let folder = self.folder.as_ref();
        self.fingerprint = folder.map(|f| f.dir.fingerprint()).transpose()?;
        Ok(())
    }

    /// `config.json` of the trained model: what the family writes, with the special tokens of the folder it came from.
    pub fn hf_config(&self, eod: Option<u32>) -> Value {
        let mut config = self.spec.hf_config();
        let from = self.folder.as_ref().map(|f| &f.dir.config);
        for key in TOKEN_IDS {
            let value = match from {
                // A folder that names none gets those of the run, and one that names what is no token of its model's none.
                Some(c) => match c
                    .get(key)
                    .filter(|v| is_token(key, v, self.spec.model().vocab))
                {
                    Some(Value::Null) | None if key != "pad_token_id" => eod.map(Value::from),
                    told => told.cloned(),
                },
                None if key == "pad_token_id" => None,
                None => eod.map(Value::from),
            };
            if let Some(value) = value {
                config[key] = value;
            }
        }
        config
    }
}
