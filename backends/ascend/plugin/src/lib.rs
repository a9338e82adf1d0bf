//! The Ascend backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_ascend::Ascend,
    // No `needs`: the back end reports itself that the run time is missing, and another file for it may be configured.
    manifest = "name=ascend;vendor=Crossweave;kinds=npu"
);
