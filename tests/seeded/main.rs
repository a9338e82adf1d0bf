//! The conformance kit is tested by seeded bugs: each defect below is compiled into a plugin, and the kit must name it by the right case;
//! without a defect the same cases hold. Narrow runs keep this short; one defect of each kind is also looked for by a run of whole levels.

mod aligned;
mod cards;
mod ends;
mod frame;
mod mutants;
mod only;
mod ops;
mod parameters;
mod residues;
mod sizes;
mod verdicts;

use crossweave_conform::{Effort, Level};
use frame::{Defect, all_named, c_plugin, failures, holds, late_plugin, options, run, wrapped_cpu};

/// A child of the kit, when this binary is started as one.
#[test]
#[ignore = "started by the kit"]
fn child() {
    frame::serve_child();
}

/// A parent of the kit, when this binary is started as one that will be killed.
#[test]
#[ignore = "started by a test of this binary"]
fn parent() {
    ends::parent();
}

/// Defects of devices, memory, streams and events, in a wrapper of the CPU back end.
const DEVICE: &[Defect] = &[
    ("index_wraps_around", "life.device.index_beyond"),
    ("thread_for_each_open", "life.threads_end_with_their_owner"),
    ("shutdown_leaves_a_thread", "life.shutdown"),
    ("unknown_attribute_is_empty", "abi.unknown_attribute"),
    ("more_free_than_there_is", "mem.info.free_goes_down_and_up"),
    ("device_memory_is_mapped", "mem.map.device_memory"),
    ("alignment_ignored", "mem.alloc.alignment"),
    ("oom_is_internal", "mem.alloc.beyond_memory"),
    ("oom_is_sticky", "fault.oom_is_not_sticky"),
    ("import_copies", "mem.import_host_pointer"),
    ("copy_truncates_to_the_shorter", "mem.copy.unequal_lengths"),
    ("copy_drops_the_odd_byte", "mem.copy.sizes"),
    ("copy_2d_ignores_the_pitch", "mem.copy_2d"),
    ("fill_rounds_up", "mem.fill.patterns"),
    ("fill_repeats_one_byte", "mem.fill.patterns"),
    ("fills_of_the_host_are_forgotten", "mem.fill.patterns"),
    ("enqueue_waits", "order.enqueue_returns_while_stalled"),
    ("wait_event_does_nothing", "order.cross_stream_event"),
    ("waits_by_one_stream_only", "order.cross_stream_event"),
    (
        "rerecord_moves_waits",
        "order.rerecord_does_not_move_a_wait",
    ),
    (
        "unrecorded_event_is_pending",
        "order.wait_for_an_unrecorded_event",
    ),
    (
        "event_is_always_complete",
        "order.event_query_follows_the_latest_record",
    ),
    ("event_timeout_is_ok", "order.event_sync_timeout"),
    ("stream_timeout_is_ok", "order.stream_sync_timeout"),
    ("elapsed_of_a_pending_event", "order.event_elapsed"),
    ("host_call_at_once", "order.host_call_in_order"),
    ("wait_value_wants_equality", "order.wait_value"),
    ("write_value_writes_half", "order.write_value"),
    ("capture_runs_at_once", "order.graph.same_bytes_as_called"),
    (
        "graph_runs_once",
        "order.graph.each_launch_sees_memory_as_it_is",
    ),
    (
        "graph_jumps_the_queue",
        "order.graph.launches_keep_their_streams_order",
    ),
    (
        "event_in_a_capture_is_ok",
        "order.graph.what_none_holds_is_refused",
    ),
    (
        "capture_ends_at_a_refusal",
        "order.graph.what_none_holds_is_refused",
    ),
    ("capture_begins_twice", "order.graph.begin_and_end_in_turn"),
    ("capture_ends_unbegun", "order.graph.begin_and_end_in_turn"),
    ("graph_takes_any_stream", "order.graph.wrong_handles"),
    ("leak_in_capture", "leak.graph"),
    ("leak_in_fill", "leak.copy_and_fill"),
    ("leak_in_alloc", "leak.mem"),
    ("descriptor_for_each_event", "leak.event"),
    ("fault_breaks_for_ever", "fault.points.oom"),
    ("fault_reported_as_unsupported", "fault.points.error"),
    ("fault_is_swallowed", "fault.points.error"),
    ("lost_is_not_sticky", "fault.points.device_lost"),
    ("nothing_is_not_given_out", "mem.alloc.sizes"),
    ("pinned_to_pinned_is_forgotten", "mem.copy.every_two_kinds"),
    ("copy_2d_forgets_the_last_row", "mem.copy_2d"),
    ("peers_get_nothing", "mem.copy_peer"),
    ("fill_repeats_four_bytes", "mem.fill.patterns"),
    ("negative_priorities_are_refused", "order.every_priority"),
    ("a_ring_of_1000_calls", "order.many_in_flight"),
    ("event_timeout_is_late", "order.event_sync_timeout"),
    ("stream_timeout_is_late", "order.stream_sync_timeout"),
    ("elapsed_is_in_microseconds", "order.event_elapsed"),
    ("write_value_at_once", "order.write_value"),
    ("stream_query_waits", "fault.queries_return_at_once.r2"),
    ("event_query_waits", "fault.queries_return_at_once.r2"),
    ("failed_streams_recover", "fault.host_call_after_failure.r2"),
    (
        "host_call_is_told_of_no_failure",
        "fault.host_call_after_failure.r2",
    ),
    ("failure_passes_events", "fault.failure_is_told_again.r2"),
    ("leak_in_launch", "leak.op.launches"),
    ("leak_in_prepare", "leak.op.prepares"),
    ("leak_in_refused_prepare", "leak.refused.op_prepare.types"),
    (
        "leak_in_refused_alloc",
        "leak.refused.mem_alloc.beyond_memory",
    ),
    ("leak_in_refused_map", "leak.refused.mem_map"),
    ("leak_in_refused_open", "leak.refused.device_open"),
    ("leak_in_refused_attr", "leak.refused.device_attr"),
    ("leak_in_refused_copy", "leak.refused.copy"),
    (
        "stream_is_always_done",
        "order.enqueue_returns_while_stalled",
    ),
    ("event_sync_does_not_wait", "order.event_sync_timeout"),
    ("wait_event_holds_the_host", "order.cross_stream_event"),
    ("wait_value_of_32_bits", "order.wait_value"),
    ("copies_end_at_1_mib", "mem.copy.sizes"),
    ("fills_end_at_1_mib", "mem.fill.patterns"),
    ("copy_2d_ends_at_1024_rows", "mem.copy_2d"),
    (
        "ops_jump_the_queue",
        "order.op.arrays_are_read_before_return",
    ),
    ("op_launch_waits", "order.op.arrays_are_read_before_return"),
    ("leak_in_stream_query", "leak.call.stream_query"),
    ("leak_in_stream_sync", "leak.call.stream_sync"),
    ("leak_in_record", "leak.call.event_record"),
    ("leak_in_event_query", "leak.call.event_query"),
    ("leak_in_event_sync", "leak.call.event_sync"),
    ("leak_in_elapsed", "leak.call.event_elapsed"),
    ("leak_in_wait_event", "leak.call.stream_wait_event"),
    ("leak_in_host_call", "leak.call.stream_host_call"),
    ("leak_in_wait_value", "leak.call.stream_values"),
    ("leak_in_write_value", "leak.call.stream_values"),
    ("leak_in_copy", "leak.copy_and_fill"),
    ("leak_in_copy_2d", "leak.call.copy_2d"),
    ("leak_in_info", "leak.call.device_info"),
    ("leak_in_map", "leak.call.mem_map"),
    ("leak_in_copy_peer", "leak.call.peers"),
    ("leak_in_peer_access", "leak.call.peers"),
    ("an_event_serves_one_wait", "order.diamond"),
    ("no_time_between_streams", "order.event_elapsed"),
    (
        "copies_within_a_memory_are_lost",
        "mem.copy.every_two_kinds",
    ),
    ("rows_to_the_host_are_dense", "mem.copy_2d"),
    ("rows_from_the_host_are_dense", "mem.copy_2d"),
    ("peers_work_one_way", "mem.copy_peer"),
    ("large_copies_of_peers_end", "mem.copy_peer"),
    (
        "graphs_end_at_16_launches",
        "order.graph.each_launch_sees_memory_as_it_is",
    ),
];

/// Defects of collectives, in the same wrapper, on two ranks.
const COLLECTIVE: &[Defect] = &[
    ("ids_are_all_the_same", "abi.attribute_length"),
    ("unknown_flags_are_claimed", "abi.unknown_collective"),
    ("avg_sums", "coll.all_reduce.f32.avg.r2"),
    ("counts_taken_as_bytes", "coll.broadcast.f32.r2"),
    (
        "premul_ignores_the_scale",
        "coll.all_reduce.f32.premul_sum.r2",
    ),
    ("root_off_by_one", "coll.broadcast.u8.r2"),
    ("bad_roots_are_clamped", "coll.bad_root_or_peer.r2"),
    ("reduce_writes_everywhere", "coll.reduce.f32.sum.r2"),
    ("min_is_max", "coll.reduce_scatter.i32.min.r2"),
    ("gaps_are_closed", "coll.all_to_all_v.f32.r2"),
    ("barrier_holds_nobody", "coll.barrier.holds_all.r2"),
    ("groups_run_their_first", "coll.group.mixed.r2"),
    ("messages_overtake", "coll.send_recv.u8.r2"),
    (
        "launch_waits_for_peers",
        "coll.order.launch_returns_at_once.r2",
    ),
    ("last_bits_differ_by_rank", "coll.all_reduce.f32.sum.r2"),
    ("input_is_scratch", "coll.all_reduce.bf16.max.r2"),
    (
        "query_claims_integer_averages",
        "coll.all_reduce.i32.avg.r2",
    ),
    (
        "query_refuses_what_launch_takes",
        "coll.all_reduce.f32.prod.r2",
    ),
    ("split_ignores_the_key", "coll.split.colour_and_key.r2"),
    ("abort_takes_its_time", "fault.abort_from_another_thread.r2"),
    ("comm_timeout_ignored", "fault.missing_rank_is_named.r2"),
    ("failures_are_not_sticky", "fault.missing_rank_is_named.r2"),
    ("the_wrong_rank_is_named", "fault.missing_rank_is_named.r2"),
    ("a_rank_names_itself", "fault.missing_rank_is_named.r2"),
    ("failures_are_internal", "fault.missing_member_at_init.r2"),
    (
        "a_dead_communicator_is_well",
        "fault.abort_from_another_thread.r2",
    ),
    ("type_as:u8:i8", "coll.all_reduce.u8.max.r2"),
    ("type_as:i8:u8", "coll.reduce.i8.min.r2"),
    ("type_as:u32:i32", "coll.reduce_scatter.u32.max.r2"),
    ("type_as:i32:u32", "coll.all_reduce.i32.min.r2"),
    ("type_as:u64:i64", "coll.all_reduce.u64.min.r2"),
    ("type_as:i64:u64", "coll.reduce.i64.max.r2"),
    ("type_as:i64:i32", "coll.all_reduce.i64.sum.r2"),
    ("type_as:u64:u32", "coll.reduce_scatter.u64.prod.r2"),
    ("type_as:i32:i8", "coll.all_reduce.i32.sum.r2"),
    ("type_as:f32:i32", "coll.all_reduce.f32.min.r2"),
    ("type_as:f16:bf16", "coll.all_reduce.f16.sum.r2"),
    ("type_as:bf16:f16", "coll.reduce_scatter.bf16.sum.r2"),
    ("type_as:f64:f32", "coll.all_reduce.f64.sum.r2"),
    ("reduction_as:prod:sum", "coll.all_reduce.f32.prod.r2"),
    ("reduction_as:max:sum", "coll.reduce.f32.max.r2"),
    ("min_drops_nan_of_ranks", "coll.all_reduce.f32.min.r2"),
    ("in_place_gathers_begin_at_0", "coll.all_gather.f32.r2"),
    (
        "in_place_scatters_end_at_0",
        "coll.reduce_scatter.f32.sum.r2",
    ),
    ("gathered_gaps_are_closed", "coll.all_gather_v.f32.r2"),
    ("send_offsets_are_ignored", "coll.all_to_all_v.u8.r2"),
    ("counts_are_read_late", "coll.all_to_all_v.f32.r2"),
    ("reduce_is_to_rank_0", "coll.reduce.f32.sum.r2"),
    (
        "device_scale_is_ignored",
        "coll.premul_sum.scale_on_device.r2",
    ),
    ("pairs_need_a_power_of_two", "coll.all_reduce.f32.sum.r6"),
    (
        "refused_group_runs_its_beginning",
        "coll.group.refused_as_a_whole.r2",
    ),
    (
        "splits_of_one_parent_are_one",
        "coll.split.two_of_one_parent.r2",
    ),
    ("chunks_of_131072", "coll.all_reduce.f32.sum.r2"),
    ("groups_end_at_16", "coll.group.long.r2"),
    ("a_ring_of_128_launches", "coll.order.many_in_flight.r2"),
    ("failure_is_told_once", "fault.failure_is_told_again.r2"),
    ("async_error_waits", "fault.queries_return_at_once.r2"),
    ("abort_waits_a_little", "fault.destroy_after_abort.r2"),
    ("destroy_after_abort_waits", "fault.destroy_after_abort.r2"),
    ("broadcasts_end_at_8192", "coll.broadcast.f32.r2"),
    ("reductions_end_at_8192", "coll.reduce.f32.sum.r2"),
    ("messages_end_at_8192", "coll.send_recv.u8.r2"),
    ("odd_elements_are_dropped", "coll.all_reduce.bf16.sum.r2"),
    ("offsets_round_down_to_words", "coll.all_gather.u8.r2"),
    ("empty_ones_are_refused", "coll.all_reduce.f32.sum.r2"),
    (
        "collectives_jump_the_queue",
        "coll.order.stalled_producer.r2",
    ),
    ("leak_in_collective", "leak.collective.r2"),
    ("leak_in_async_error", "leak.collective.r2"),
    ("leak_in_comm_query", "leak.collective.r2"),
    ("split_ignores_no_colour", "coll.split.colour_and_key.r3"),
    ("other_types_end_at_8192", "coll.all_reduce.bf16.sum.r2"),
    (
        "scattered_sums_end_at_8192",
        "coll.reduce_scatter.bf16.sum.r2",
    ),
    ("gathers_end_at_8192", "coll.all_gather.u8.r2"),
    ("exchanges_end_at_8192", "coll.all_to_all.u8.r2"),
    ("maxima_end_at_8192", "coll.all_reduce.f32.max.r2"),
    ("scale_of_16_bits", "coll.all_reduce.f32.premul_sum.r2"),
    ("groups_have_one_peer", "coll.send_recv.f32.r3"),
    ("groups_have_one_root", "coll.group.all_differ.r2"),
    ("groups_have_one_reduction", "coll.group.all_differ.r3"),
    (
        "splits_of_splits_have_one_colour",
        "coll.split.of_a_split.r4",
    ),
    ("nothing_is_sent_to_oneself", "coll.send_recv.f32.r3"),
];

/// What only C can get wrong.
const C: &[Defect] = &[
    ("MANIFEST_LIES", "abi.manifest.agrees_with_the_entry"),
    ("EXPORTS", "abi.file.exported_symbols"),
    (
        "VERSION_IGNORED",
        "abi.entry.newer_host_requirement_is_refused",
    ),
    ("TABLE_OVERRUN", "abi.entry.smaller_plugin_table"),
    ("PREFIX_IDS", "abi.unknown_interface"),
    ("SHORT_IDS", "abi.unknown_interface"),
    ("INFO_OVERRUN", "abi.no_write_past_smaller_struct"),
    ("RECORD_OVERRUN", "abi.smaller_error_record"),
    ("RECORD_ON_SUCCESS", "abi.error_record_on_failure_only"),
    ("RECORD_CODE", "abi.error_record_on_failure_only"),
    ("UNTERMINATED", "abi.error_record_on_failure_only"),
    ("NULL_RECORD", "abi.null_error_record"),
    ("NULL_HANDLES", "life.null_handles"),
    ("NULL_OUT", "life.null_out_pointers"),
    ("DESTROY_NULL", "life.destroy_takes_null"),
    ("SIGNAL_HANDLER", "life.caller_thread_is_left_alone"),
    ("EXITS", "life.stream.destroy_with_work"),
    ("UNKNOWN_KIND", "mem.alloc.unknown_kind"),
    ("FLAGS_IGNORED", "abi.unknown_flags"),
    ("MAP_MOVES", "mem.map"),
    ("FILL_BIG_ENDIAN", "mem.fill.patterns"),
    ("PITCHES_SWAPPED", "mem.copy_2d"),
    ("CRASH", "mem.copy_2d"),
    ("HANGS", "mem.copy_2d"),
    ("LEAK_EVENT", "leak.event"),
    ("LEAK_DEVICE", "leak.device"),
    ("FREE_READING", "mem.info.free_goes_down_and_up"),
    ("CHILD_HANDLER", "life.caller_thread_is_left_alone"),
    ("ROUNDING", "life.caller_thread_is_left_alone"),
    ("CHARGES_ANOTHER", "mem.info.each_device_has_its_own"),
    ("LARGER_INFO", "abi.larger_out_struct"),
    ("LONG_NAME", "abi.names_are_text"),
    ("KIND_IS_INVALID", "mem.alloc.unknown_kind"),
    ("LARGE_ALIGNMENT", "mem.alloc.alignment"),
    ("OVERLAP", "mem.alloc.disjoint"),
    ("ROWS_UNCHECKED", "mem.copy_2d.does_not_fit"),
    ("PATTERN_OF_3", "mem.fill.refused_patterns"),
    ("TABLE_SIZE", "abi.tables_state_their_size"),
    ("TABLE_MOVES", "abi.tables_are_the_same_every_time"),
    ("NULL_TABLE", "abi.entry.null_host_and_out"),
    ("ENTRY_ONCE", "abi.entry.twice"),
    ("LARGER_HOST", "abi.entry.larger_host_table"),
    (
        "VERSION_WITHOUT_NUMBERS",
        "abi.entry.newer_host_requirement_is_refused",
    ),
    ("ALLOCATOR", "abi.file.no_allocator_of_its_own"),
];

/// Arrays and structs of the host that are read when the stream comes to them.
const LATE: &[Defect] = &[
    ("OPERANDS", "order.op.arrays_are_read_before_return"),
    ("LAUNCH_STRUCTS", "op.philox.bits.u32"),
];

#[test]
fn what_is_read_late_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let good = late_plugin(dir.path(), "");
    holds(&good, LATE);
    all_named(LATE, &|what| {
        let own = dir.path().join(what);
        std::fs::create_dir(&own).expect("a folder");
        late_plugin(&own, what)
    });
}

#[test]
fn defects_of_a_device_are_named() {
    let plugin = wrapped_cpu();
    holds(&plugin, DEVICE);
    all_named(DEVICE, &|_| plugin.clone());
}

#[test]
fn defects_of_collectives_are_named() {
    let plugin = wrapped_cpu();
    holds(&plugin, COLLECTIVE);
    all_named(COLLECTIVE, &|_| plugin.clone());
}

#[test]
fn defects_of_a_c_plugin_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let good = c_plugin(dir.path(), "");
    holds(&good, C);
    all_named(C, &|bug| c_plugin(dir.path(), bug));
}

/// Nobody says where to look: whole levels find a defect too, name it once each, and go on behind a crash.
#[test]
fn whole_levels_find_a_sample() {
    let dir = tempfile::tempdir().expect("a folder");
    for (bug, wanted) in [
        ("CRASH", "mem.copy_2d"),
        ("RECORD_OVERRUN", "abi.smaller_error_record"),
    ] {
        let plugin = c_plugin(dir.path(), bug);
        let mut o = options(&plugin, "", &[]);
        o.level = Level::Device;
        o.effort = Effort::Quick;
        let r = run(&o);
        assert_eq!(r.exit_code(), 1, "{bug}");
        let bad = failures(&r);
        assert!(bad.iter().any(|f| f.starts_with(wanted)), "{bug}: {bad:?}");
        if bug == "CRASH" {
            assert!(bad.iter().all(|f| f.starts_with("mem.copy_2d")), "{bad:?}");
            assert!(bad.iter().any(|f| f.contains("SIGSEGV")), "{bad:?}");
        }
        // Every case of the level has an end.
        assert_eq!(r.cells.len(), o.cases().expect("cases").len(), "{bug}");
    }
}
