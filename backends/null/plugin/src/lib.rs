//! The null backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_null::Null,
    manifest = "name=null;vendor=Crossweave"
);
