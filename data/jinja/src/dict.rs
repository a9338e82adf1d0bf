//! A dict: pairs in the order of insertion, found by the hash of their key.

use crate::budget::{Budget, Held};
use crate::error::{Result, fail};
use crate::ops::{equal, integer_of};
use crate::value::{OVERHEAD, PLACE, Value, check_depth};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Up to so many pairs a dict is searched from its first to its last.
const SMALL: usize = 8;

/// A dict.
pub struct Dict {
    pairs: Vec<(Value, Value)>,
    index: Option<Index>,
    depth: u16,
    plain: bool,
    held: Held,
}

/// The places of the pairs whose key has a hash.
struct Index {
    seeds: RandomState,
    places: HashMap<u64, Vec<u32>>,
}

impl Dict {
    /// An empty dict.
    pub(crate) fn new() -> Dict {
        Dict {
            pairs: Vec::new(),
            index: None,
            depth: 1,
            plain: true,
            held: Held::default(),
        }
    }

    /// A dict of pairs.
    ///
    /// # Errors
    /// A key that cannot be one, or a limit.
    #[inline(never)]
    pub(crate) fn of(
        pairs: impl IntoIterator<Item = (Value, Value)>,
        budget: &Budget,
    ) -> Result<Dict> {
        let mut dict = Dict::new();
        for (key, value) in pairs {
            dict.insert(key, value, budget)?;
        }
        dict.hold(budget)?;
        Ok(dict)
    }

    /// Takes its bytes from the budget.
    pub(crate) fn hold(&mut self, budget: &Budget) -> Result<()> {
        check_depth(self.depth)?;
        self.held = budget.hold(self.pairs.len() * (2 * PLACE + OVERHEAD) + OVERHEAD)?;
        Ok(())
    }

    /// Sets a key. The first place of a key stays its place.
    pub(crate) fn insert(&mut self, key: Value, value: Value, budget: &Budget) -> Result<()> {
        check_key(&key)?;
        budget.step(1)?;
        self.depth = self.depth.max(1 + key.depth().max(value.depth()));
        self.plain &= key.is_plain() && value.is_plain();
        if let Some(at) = self.place(&key, budget)? {
            self.pairs[at].1 = value;
            return Ok(());
        }
        if self.pairs.len() % 1024 == 1023 {
            budget.room(self.pairs.len() * (2 * PLACE + OVERHEAD))?;
        }
        self.pairs.push((key, value));
        let last = self.pairs.len() - 1;
        match &mut self.index {
            Some(index) => index.add(&self.pairs[last].0, last, budget)?,
            None if last >= SMALL => {
                let mut index = Index {
                    seeds: RandomState::new(),
                    places: HashMap::new(),
                };
                for (at, (key, _)) in self.pairs.iter().enumerate() {
                    index.add(key, at, budget)?;
                }
                self.index = Some(index);
            }
            None => {}
        }
        Ok(())
    }

    fn place(&self, key: &Value, budget: &Budget) -> Result<Option<usize>> {
        let near = match &self.index {
            Some(index) => {
                let hash = hash(key, &index.seeds, budget)?;
                index.places.get(&hash).map_or(&[][..], Vec::as_slice)
            }
            None => {
                for (at, (k, _)) in self.pairs.iter().enumerate() {
                    if equal(k, key, budget)? {
                        return Ok(Some(at));
                    }
                }
                return Ok(None);
            }
        };
        for &at in near {
            if equal(&self.pairs[at as usize].0, key, budget)? {
                return Ok(Some(at as usize));
            }
        }
        Ok(None)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// A key that cannot be one.
    pub(crate) fn get(&self, key: &Value, budget: &Budget) -> Result<Option<&Value>> {
        check_hash(key)?;
        Ok(self.place(key, budget)?.map(|at| &self.pairs[at].1))
    }

    /// The value of a text as key.
    pub(crate) fn field(&self, name: &str) -> Option<&Value> {
        match &self.index {
            None => {
                let mut pairs = self.pairs.iter();
                pairs.find(|(k, _)| k.as_str() == Some(name)).map(|p| &p.1)
            }
            Some(index) => {
                let near = index.places.get(&hash_text(name, &index.seeds))?;
                let mut pairs = near.iter().map(|&at| &self.pairs[at as usize]);
                pairs.find(|(k, _)| k.as_str() == Some(name)).map(|p| &p.1)
            }
        }
    }

    pub(crate) fn pairs(&self) -> &[(Value, Value)] {
        &self.pairs
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }
}

impl Index {
    fn add(&mut self, key: &Value, at: usize, budget: &Budget) -> Result<()> {
        let hash = hash(key, &self.seeds, budget)?;
        self.places.entry(hash).or_default().push(at as u32);
        Ok(())
    }
}

/// # Errors
/// A value that has no hash in Python.
pub(crate) fn check_hash(key: &Value) -> Result<()> {
    match key {
        Value::List(_) | Value::Dict(_) | Value::View(_) => {
            fail(format!("unhashable type: '{}'", key.type_name()))
        }
        Value::Tuple(items) => items.items.iter().try_for_each(check_hash),
        _ => Ok(()),
    }
}

/// # Errors
/// A value that cannot be a key.
fn check_key(key: &Value) -> Result<()> {
    check_hash(key)?;
    match key {
        Value::Object(_) | Value::Iter(_) => fail(format!(
            "a {} as the key of a dict is not supported",
            key.type_name()
        )),
        _ => Ok(()),
    }
}

fn hash_text(text: &str, seeds: &RandomState) -> u64 {
    seeds.hash_one((1u8, text))
}

/// A hash that is equal for values that are equal.
fn hash(key: &Value, seeds: &RandomState, budget: &Budget) -> Result<u64> {
    Ok(match key {
        Value::Str(t) => {
            budget.scan(t.as_str().len())?;
            hash_text(t.as_str(), seeds)
        }
        Value::Tuple(items) => {
            budget.step(1)?;
            let mut sum = 0u64;
            for item in &items.items {
                sum = seeds.hash_one((sum, hash(item, seeds, budget)?));
            }
            sum
        }
        Value::Range(r) => seeds.hash_one((2u8, r.len)),
        Value::Undefined(_) => 0,
        Value::None => 1,
        other => match integer_of(other) {
            Some(n) => seeds.hash_one((3u8, n)),
            None => match other {
                Value::Float(f) => {
                    match f.is_finite() && f.fract() == 0.0 && budget.step(8).is_ok() {
                        true => seeds.hash_one((4u8, format!("{f:.0}"))),
                        false => seeds.hash_one((5u8, f.to_bits())),
                    }
                }
                Value::Big(n) => seeds.hash_one((4u8, crate::number::digits(n.get(), budget)?)),
                _ => 2,
            },
        },
    })
}
