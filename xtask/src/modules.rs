//! The modules of every package and what a path in one of them stands for, so that an import through any number of re-exports leads to
//! the file that defines the name.

use crate::syntax::{Import, Syntax};
use crate::tree::{File, Tree};
use std::collections::{BTreeMap, HashMap};

/// A module: of a file, or inline in one.
#[derive(Clone, Debug)]
struct Module<'a> {
    /// In `Tree::files`.
    file: usize,
    syntax: &'a Syntax,
    /// In the file's scopes.
    scope: usize,
    /// None for a crate's root.
    parent: Option<usize>,
    /// The root of its crate.
    root: usize,
    /// Compiled for tests only.
    test: bool,
    names: HashMap<&'a str, Vec<Named<'a>>>,
    globs: Vec<&'a Import>,
}

#[derive(Clone, Copy, Debug)]
enum Named<'a> {
    Module(usize),
    Item,
    Import(&'a Import),
}

/// What a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target<'a> {
    /// A module.
    Module(usize),
    /// An item of a module, or something of that item.
    Item(usize, &'a str),
}

/// One file that names something of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// In `Tree::files`.
    pub from: usize,
    /// In `Tree::files`.
    pub to: usize,
    /// The first line that does, from 1.
    pub line: usize,
    /// What it names there.
    pub name: String,
    /// Whether every such line only re-exports, so that the file itself uses nothing of the other.
    pub exported: bool,
}

/// The modules of a tree.
pub struct Modules<'a> {
    tree: &'a Tree,
    all: Vec<Module<'a>>,
    /// The library of each package by the name that code gives it.
    libraries: HashMap<String, (usize, String)>,
    /// For each file, whether it is compiled for tests only; files that no root reaches are not in it.
    reached: BTreeMap<usize, bool>,
}

impl<'a> Modules<'a> {
    /// Follows `mod` from the roots of every package.
    pub fn of(tree: &'a Tree) -> Modules<'a> {
        let mut m = Modules {
            tree,
            all: Vec::new(),
            libraries: HashMap::new(),
            reached: BTreeMap::new(),
        };
        let index: HashMap<&str, usize> = tree
            .files
            .iter()
            .enumerate()
            .map(|(i, f)| (f.path.as_str(), i))
            .collect();
        for p in &tree.packages {
            let src = format!("{}/src/", p.folder);
            let is_root = |f: &File| {
                f.path.strip_prefix(&src).is_some_and(|rest| {
                    ["lib.rs", "main.rs"].contains(&rest)
                        || rest.strip_prefix("bin/").is_some_and(|r| !r.contains('/'))
                })
            };
            for (i, f) in tree.files.iter().enumerate().filter(|(_, f)| is_root(f)) {
                let root = m.all.len();
                let folder = f.path.rsplit_once('/').map_or("", |p| p.0).to_string();
                m.add(i, &folder, None, root, false, &index);
                if f.path.ends_with("/lib.rs") {
                    let name = p.name.replace('-', "_");
                    m.libraries.insert(name, (root, p.folder.clone()));
                }
            }
        }
        m
    }

    /// Adds the module of a file and everything below it. `folder` is where the files of its children lie.
    fn add(
        &mut self,
        file: usize,
        folder: &str,
        parent: Option<usize>,
        root: usize,
        test: bool,
        index: &HashMap<&str, usize>,
    ) {
        let tree: &'a Tree = self.tree;
        let Some(syntax) = tree.files[file].syntax.as_ref() else {
            return;
        };
        let test = test || syntax.scopes[0].test;
        let seen = self.reached.entry(file).or_insert(test);
        *seen &= test;
        let first = self.all.len();
        // The scopes of one file lie one after another, so that a scope's index gives its module.
        for (i, s) in syntax.scopes.iter().enumerate() {
            self.all.push(Module {
                file,
                syntax,
                scope: i,
                parent: s.parent.map(|p| first + p).or(parent),
                root,
                test: test || s.test,
                names: HashMap::new(),
                globs: Vec::new(),
            });
        }
        for (i, s) in syntax.scopes.iter().enumerate() {
            let mut names: HashMap<&'a str, Vec<Named<'a>>> = HashMap::new();
            for item in &s.items {
                names.entry(item).or_default().push(Named::Item);
            }
            for import in s.imports.iter().filter(|i| i.name != "*") {
                names
                    .entry(&import.name)
                    .or_default()
                    .push(Named::Import(import));
            }
            for (k, inner) in syntax.scopes.iter().enumerate() {
                if inner.parent == Some(i) {
                    names
                        .entry(&inner.name)
                        .or_default()
                        .push(Named::Module(first + k));
                }
            }
            // Inline modules are folders to the files declared inside them.
            let mut inline = Vec::new();
            let mut up = Some(i);
            while let Some(k) = up.filter(|k| *k != 0) {
                inline.insert(0, syntax.scopes[k].name.as_str());
                up = syntax.scopes[k].parent;
            }
            let inner = [&[folder], inline.as_slice()].concat().join("/");
            for child in &s.children {
                let here = tree.files[file].path.rsplit_once('/').map_or("", |p| p.0);
                let tries = match &child.path {
                    Some(p) => vec![joined(here, p)],
                    None => vec![
                        format!("{inner}/{}.rs", child.name),
                        format!("{inner}/{}/mod.rs", child.name),
                    ],
                };
                let Some(&found) = tries.iter().find_map(|t| index.get(t.as_str())) else {
                    continue;
                };
                // A file that declares itself, by `#[path]`, would never end.
                if self.above(first + i, found) {
                    continue;
                }
                let path = &tree.files[found].path;
                let below = match child.path {
                    // A file that is named by its path stands for a folder's `mod.rs`.
                    Some(_) => path.rsplit_once('/').map_or("", |p| p.0),
                    None => path
                        .strip_suffix("/mod.rs")
                        .or(path.strip_suffix(".rs"))
                        .unwrap_or(path),
                };
                names
                    .entry(&child.name)
                    .or_default()
                    .push(Named::Module(self.all.len()));
                self.add(
                    found,
                    below,
                    Some(first + i),
                    root,
                    test || child.test,
                    index,
                );
            }
            self.all[first + i].names = names;
            self.all[first + i].globs = s.imports.iter().filter(|i| i.name == "*").collect();
        }
    }

    fn above(&self, module: usize, file: usize) -> bool {
        let mut up = Some(module);
        while let Some(m) = up {
            if self.all[m].file == file {
                return true;
            }
            up = self.all[m].parent;
        }
        false
    }

    /// Whether a file is reached by tests only. A file that no root reaches is not.
    pub fn is_test(&self, file: usize) -> bool {
        self.reached.get(&file).copied().unwrap_or(false)
    }

    /// Whether a root reaches a file.
    pub fn reaches(&self, file: usize) -> bool {
        self.reached.contains_key(&file)
    }

    /// The file that defines a target.
    pub fn file_of(&self, target: Target) -> usize {
        match target {
            Target::Module(m) | Target::Item(m, _) => self.all[m].file,
        }
    }

    /// What a path in a scope of a file stands for; empty where that is outside of the package or unknown.
    pub fn find(&self, file: usize, scope: usize, path: &[String]) -> Vec<Target<'a>> {
        let here = |m: &Module| m.file == file && m.scope == scope;
        let mut found: Vec<Target> = (0..self.all.len())
            .filter(|&m| here(&self.all[m]))
            .flat_map(|m| self.resolve(m, path, &mut Vec::new()))
            .collect();
        found.sort();
        found.dedup();
        found
    }

    fn resolve(
        &self,
        from: usize,
        path: &[String],
        open: &mut Vec<(usize, String)>,
    ) -> Vec<Target<'a>> {
        let Some((first, mut rest)) = path.split_first() else {
            return vec![Target::Module(from)];
        };
        let mut targets = match first.as_str() {
            "crate" => vec![Target::Module(self.all[from].root)],
            "self" => vec![Target::Module(from)],
            "Self" => Vec::new(),
            "super" => {
                let mut at = self.all[from].parent;
                while let Some((next, after)) = rest.split_first().filter(|r| r.0 == "super") {
                    debug_assert_eq!(next, "super");
                    at = at.and_then(|m| self.all[m].parent);
                    rest = after;
                }
                at.map(Target::Module).into_iter().collect()
            }
            name => {
                let found = self.lookup(from, name, open);
                // The library of this very package, as its program names it.
                let own = || {
                    let (root, folder) = self.libraries.get(name)?;
                    let path = &self.tree.files[self.all[from].file].path;
                    let below = path.strip_prefix(folder.as_str())?.starts_with("/src/");
                    below.then_some(Target::Module(*root))
                };
                if found.is_empty() {
                    own().into_iter().collect()
                } else {
                    found
                }
            }
        };
        for segment in rest {
            targets = targets
                .into_iter()
                .flat_map(|t| match t {
                    Target::Module(m) => self.lookup(m, segment, open),
                    item => vec![item],
                })
                .collect();
        }
        targets
    }

    /// What a name stands for in a module: its own items and imports, then those of its globs.
    fn lookup(
        &self,
        module: usize,
        name: &str,
        open: &mut Vec<(usize, String)>,
    ) -> Vec<Target<'a>> {
        // Imports may lead in a circle.
        if open.iter().any(|o| o.0 == module && o.1 == name) {
            return Vec::new();
        }
        open.push((module, name.to_string()));
        let mut found = Vec::new();
        let m = &self.all[module];
        if let Some((own, named)) = m.names.get_key_value(name) {
            for n in named {
                match n {
                    Named::Module(c) => found.push(Target::Module(*c)),
                    Named::Item => found.push(Target::Item(module, own)),
                    Named::Import(i) => found.extend(self.resolve(module, &i.path, open)),
                }
            }
        } else {
            for g in &m.globs {
                for t in self.resolve(module, &g.path, open) {
                    if let Target::Module(of) = t {
                        found.extend(self.lookup(of, name, open));
                    }
                }
            }
        }
        open.pop();
        found
    }

    /// Which file names something that another file of its package defines, outside tests.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges: BTreeMap<(usize, usize), Edge> = BTreeMap::new();
        for (i, m) in self.all.iter().enumerate().filter(|(_, m)| !m.test) {
            let scope = &m.syntax.scopes[m.scope];
            let imports = scope.imports.iter().filter(|i| i.name != "*");
            let named = imports
                .map(|i| (&i.path, i.line, i.exported))
                .chain(scope.mentions.iter().map(|m| (&m.path, m.line, false)));
            for (path, line, exported) in named {
                for t in self.resolve(i, path, &mut Vec::new()) {
                    // A module alone is a way to its items, which are found where they are used.
                    let Target::Item(of, _) = t else { continue };
                    let to = self.all[of].file;
                    if to == m.file || self.all[of].test {
                        continue;
                    }
                    let new = Edge {
                        from: m.file,
                        to,
                        line,
                        name: path.join("::"),
                        exported,
                    };
                    let edge = edges.entry((m.file, to)).or_insert_with(|| new.clone());
                    if (edge.exported && !exported)
                        || (edge.exported == exported && line < edge.line)
                    {
                        *edge = new;
                    }
                }
            }
        }
        edges.into_values().collect()
    }
}

/// A path from a folder, with its `..` taken away.
pub fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for p in path.split('/') {
        match p {
            "." | "" => {}
            ".." => drop(parts.pop()),
            p => parts.push(p),
        }
    }
    parts.join("/")
}

/// Groups of nodes that reach one another, by Tarjan: each with at least two, in ascending order.
pub fn circles(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); nodes];
    for &(a, b) in edges {
        out[a].push(b);
    }
    let mut number: Vec<Option<usize>> = vec![None; nodes];
    let mut low = vec![0; nodes];
    let mut on_stack = vec![false; nodes];
    let (mut stack, mut found, mut next) = (Vec::new(), Vec::new(), 0);
    for start in 0..nodes {
        if number[start].is_some() {
            continue;
        }
        // The open nodes, each with the edge it looks at next.
        let mut open = vec![(start, 0)];
        while let Some((n, k)) = open.pop() {
            if k == 0 {
                number[n] = Some(next);
                low[n] = next;
                next += 1;
                stack.push(n);
                on_stack[n] = true;
            }
            if let Some(&to) = out[n].get(k) {
                open.push((n, k + 1));
                match number[to] {
                    None => open.push((to, 0)),
                    Some(at) if on_stack[to] => low[n] = low[n].min(at),
                    Some(_) => {}
                }
                continue;
            }
            if let Some(&(above, _)) = open.last() {
                low[above] = low[above].min(low[n]);
            }
            if number[n] == Some(low[n]) {
                let mut group = Vec::new();
                while let Some(m) = stack.pop() {
                    on_stack[m] = false;
                    group.push(m);
                    if m == n {
                        break;
                    }
                }
                if group.len() > 1 {
                    group.sort();
                    found.push(group);
                }
            }
        }
    }
    found.sort();
    found
}

/// A shortest way round from a node of a circle back to itself, the node first and last.
pub fn way_round(start: usize, circle: &[usize], edges: &[(usize, usize)]) -> Vec<usize> {
    let mut from: HashMap<usize, usize> = HashMap::new();
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(n) = queue.pop_front() {
        for &(_, to) in edges.iter().filter(|e| e.0 == n && circle.contains(&e.1)) {
            if to == start {
                let mut way = vec![start, n];
                let mut at = n;
                while at != start {
                    at = from[&at];
                    way.push(at);
                }
                way.reverse();
                if n == start {
                    way.pop();
                }
                return way;
            }
            if to != start && !from.contains_key(&to) {
                from.insert(to, n);
                queue.push_back(to);
            }
        }
    }
    vec![start]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files).with_package("p", "p");
        let path = |i: usize| tree.files[i].path.trim_start_matches("p/src/").to_string();
        let edges = Modules::of(&tree).edges();
        edges
            .iter()
            .map(|e| format!("{} {} {}", path(e.from), path(e.to), e.name))
            .collect()
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines() {
        let found = edges(&[
            ("p/src/lib.rs", "mod a;\nmod b;\npub use a::*;"),
            ("p/src/a/mod.rs", "mod deep;\npub use deep::Thing as Other;"),
            ("p/src/a/deep.rs", "pub struct Thing;"),
            ("p/src/b.rs", "use crate::Other;\nfn f(o: Other) {}"),
        ]);
        assert_eq!(
            found,
            [
                "a/mod.rs a/deep.rs deep::Thing",
                "b.rs a/deep.rs crate::Other"
            ]
        );
    }

    #[test]
    fn paths_in_code_impls_and_macros_are_edges_and_tests_are_not() {
        let found = edges(&[
            (
                "p/src/lib.rs",
                "mod a; mod b; mod c; mod d; #[cfg(test)] mod t;",
            ),
            (
                "p/src/a.rs",
                "fn f() { super::b::g(); }\n#[cfg(test)]\nmod tests { use crate::d::X; }",
            ),
            (
                "p/src/b.rs",
                "pub fn g() {}\nimpl crate::c::C { fn m() {} }",
            ),
            ("p/src/c.rs", "pub struct C;\nfn f() { vec![crate::d::X]; }"),
            ("p/src/d.rs", "pub struct X;"),
            ("p/src/t.rs", "use crate::a::f;"),
        ]);
        assert_eq!(
            found,
            [
                "a.rs b.rs super::b::g",
                "b.rs c.rs crate::c::C",
                "c.rs d.rs crate::d::X"
            ]
        );
    }

    #[test]
    fn a_program_names_its_own_library() {
        let found = edges(&[
            ("p/src/lib.rs", "pub mod a;"),
            ("p/src/main.rs", "use p::a::A;\nuse q::a::B;\nfn main() {}"),
            ("p/src/a.rs", "pub struct A;\npub struct B;"),
        ]);
        assert_eq!(found, ["main.rs a.rs p::a::A"]);
    }

    #[test]
    fn imports_that_lead_in_a_circle_end() {
        let found = edges(&[
            ("p/src/lib.rs", "mod a; mod b;"),
            ("p/src/a.rs", "pub use crate::b::*;\npub use crate::b::X;"),
            (
                "p/src/b.rs",
                "pub use crate::a::*;\npub use crate::a::X;\nfn f() { X; Y; }",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn circles_are_told_from_chains() {
        let edges = [
            (0, 1),
            (1, 2),
            (2, 1),
            (2, 3),
            (3, 4),
            (5, 4),
            (4, 5),
            (6, 6),
        ];
        assert_eq!(circles(7, &edges), [vec![1, 2], vec![4, 5]]);
        let edges = [(0, 1), (1, 2), (2, 0), (1, 0)];
        assert_eq!(circles(3, &edges), [vec![0, 1, 2]]);
        assert_eq!(way_round(0, &[0, 1, 2], &edges), [0, 1, 0]);
        assert_eq!(way_round(2, &[0, 1, 2], &edges), [2, 0, 1, 2]);
    }
}
