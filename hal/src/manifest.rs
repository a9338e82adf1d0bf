//! Reads what a plugin says of itself out of its file, without loading it: no constructor of an unwanted library ever runs.

use crate::loader::LoadError;
use object::{Object, ObjectSection};
use std::collections::BTreeMap;
use std::path::Path;

/// Where the text lies: ELF, Mach-O and PE spell the section differently.
const SECTIONS: [&str; 3] = [crossweave_abi::MANIFEST_SECTION, "__crossweave", ".crsswv"];
/// First field of every manifest.
const MAGIC: &str = "crossweave-plugin";

/// The manifest of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// ABI major the plugin exports.
    pub abi_major: u32,
    /// ABI minor it was built with.
    pub abi_minor: u32,
    /// Interface ids it provides.
    pub interfaces: Vec<String>,
    /// Short name.
    pub name: String,
    /// Vendor.
    pub vendor: String,
    /// Libraries it opens at run time; `a|b` = either.
    pub needs: Vec<String>,
    /// Keys this host does not know.
    pub other: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads the manifest of a library file.
    pub fn read(path: &Path) -> Result<Manifest, LoadError> {
        let bytes = match crossweave_files::read(path, crossweave_files::BULK) {
            Ok(b) => b,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(LoadError::Missing { path: path.into() });
            }
            Err(e) => {
                return Err(LoadError::Unreadable {
                    path: path.into(),
                    why: format!("{e}; fix: {}", crossweave_files::fix(&e)),
                });
            }
        };
        let broken = |e: object::Error| LoadError::NotObject {
            path: path.into(),
            why: format!("{e}; {} bytes", bytes.len()),
        };
        let file = object::File::parse(&*bytes).map_err(broken)?;
        let Some(section) = SECTIONS.iter().find_map(|s| file.section_by_name(s)) else {
            return Err(LoadError::NoManifest { path: path.into() });
        };
        let data = section.data().map_err(broken)?;
        let text = data.split(|b| *b == 0).next().unwrap_or_default();
        let parsed = match std::str::from_utf8(text) {
            Ok(t) => Manifest::parse(t),
            Err(_) => Err("it is not UTF-8".into()),
        };
        parsed.map_err(|why| LoadError::BadManifest {
            path: path.into(),
            why,
        })
    }

    /// Parses `crossweave-plugin;abi=1.0;key=value;…`.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let mut fields = text.split(';').map(str::trim);
        if fields.next() != Some(MAGIC) {
            return Err(format!("it does not start with {MAGIC:?}"));
        }
        let mut m = Manifest::default();
        let mut abi = None;
        let list = |v: &str| -> Vec<String> {
            let parts = v.split(',').map(str::trim).filter(|p| !p.is_empty());
            parts.map(str::to_owned).collect()
        };
        for field in fields.filter(|f| !f.is_empty()) {
            let Some((key, value)) = field.split_once('=') else {
                return Err(format!("{field:?} is not key=value"));
            };
            match key {
                "abi" => abi = Some(value),
                "interfaces" => m.interfaces = list(value),
                "name" => m.name = value.into(),
                "vendor" => m.vendor = value.into(),
                "needs" => m.needs = list(value),
                _ => {
                    m.other.insert(key.into(), value.into());
                }
            }
        }
        let abi = abi.ok_or("it states no abi=MAJOR.MINOR")?;
        let numbers = abi.split_once('.');
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        (m.abi_major, m.abi_minor) =
            numbers.ok_or_else(|| format!("abi={abi:?} is not MAJOR.MINOR"))?;
        if m.name.is_empty() {
            return Err("it states no name".into());
        }
        Ok(m)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_known_and_unknown_keys() {
        let m = Manifest::parse(
            "crossweave-plugin;abi=1.2;interfaces=crossweave.device/1,x.acme.graph/0;name=acme;vendor=Acme Inc;needs=liba.so.1|liba.so.2, libb.so;color=red",
        )
        .unwrap();
        assert_eq!((m.abi_major, m.abi_minor), (1, 2));
        assert_eq!(m.interfaces, ["crossweave.device/1", "x.acme.graph/0"]);
        assert_eq!((m.name.as_str(), m.vendor.as_str()), ("acme", "Acme Inc"));
        assert_eq!(m.needs, ["liba.so.1|liba.so.2", "libb.so"]);
        assert_eq!(m.other["color"], "red");
    }

    #[test]
    fn refuses_with_the_reason() {
        for (text, why) in [
            ("", "start"),
            ("crossweave-plugin;name=a", "abi=MAJOR.MINOR"),
            ("crossweave-plugin;abi=one;name=a", "\"one\""),
            ("crossweave-plugin;abi=1.0", "no name"),
            ("crossweave-plugin;abi=1.0;name", "key=value"),
        ] {
            let e = Manifest::parse(text).unwrap_err();
            assert!(e.contains(why), "{text:?}: {e}");
        }
    }
}
