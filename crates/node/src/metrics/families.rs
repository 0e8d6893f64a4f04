// SPDX-License-Identifier: Apache-2.0
//! The metrics that nodes export, and where the status document has each.
//!
//! Names are what dashboards and alert rules hold on to, so they are written down here instead of
//! being made of the document's fields, which may move.

/// The type of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MetricType {
    Gauge,
    Counter,
    Histogram,
}

/// A metric with all its series.
pub(super) struct Family {
    pub name: &'static str,
    pub kind: MetricType,
    pub help: &'static str,
    /// The places in the status document whose numbers are its series. A step is
    /// - `x`: the member `x`;
    /// - `x[id]`: each entry of the list `x`, labelled by its member `id`;
    /// - `x{label}`: each member of the object `x`, labelled by its key; `x{label:a,b}`: only
    ///   these; `x{label+a}`: also `a` if it is missing, as 0;
    /// - `x#`: the length of the list `x`;
    /// - `x?`: the member `x`, or 0, whatever follows, if that is null;
    /// - `x!`: 1 if the member `x` isn't null, else 0.
    pub paths: &'static [&'static str],
    /// The factor by which the numbers become the unit of the name.
    pub scale: f64,
}

const fn gauge(name: &'static str, help: &'static str, paths: &'static [&'static str]) -> Family {
    Family {
        name,
        kind: MetricType::Gauge,
        help,
        paths,
        scale: 1.0,
    }
}

const fn counter(name: &'static str, help: &'static str, paths: &'static [&'static str]) -> Family {
    Family {
        kind: MetricType::Counter,
        ..gauge(name, help, paths)
    }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    paths: &'static [&'static str],
) -> Family {
    Family {
        kind: MetricType::Histogram,
        ..gauge(name, help, paths)
    }
}

const fn scaled(family: Family, scale: f64) -> Family {
    Family { scale, ..family }
}

/// The metrics of all roles. A node has those whose numbers are in its document.
#[rustfmt::skip] // a table
pub(super) const FAMILIES: &[Family] = &[
    gauge("uptime_seconds", "Time since this process of the node started.", &["uptime_s"]),
    counter("log_lines_left_out_total", "Lines of the node's own log that were left out because \
                                         there were too many.", &["lines_left_out"]),

    counter("control_messages_ignored_total", "Control messages that don't count here, by reason.",
        &["control{reason:malformed,wrong_cluster,misdirected,unknown_sender,unsigned,bad_mac,\
           other_key}"]),
    counter("control_messages_unsent_total", "Control messages that couldn't be sent.",
        &["control.unsent"]),
    counter("control_challenges_total", "Senders of control messages that were asked to prove \
                                         their address.", &["control.challenged"]),
    counter("control_full_turns_total", "Turns of the control loop that left messages for the next \
                                         one.", &["control.full_turns"]),
    counter("status_requests_refused_total", "Questions for the status that were refused, beyond \
                                              100 a second.", &["control.refused_documents"]),
    gauge("control_key_generation", "Generation of the key that signs control messages.",
        &["control.keys.signs"]),
    gauge("packet_key_generation", "Generation of the key that signs packets.",
        &["auth.signs", "partitions[pid].auth.signs"]),

    counter("packets_received_total", "Well-formed packets that were received, by type.",
        &["counters.received{type}"]),
    counter("packets_sent_total", "Packets that were sent, by type; one to several nodes counts \
                                   once.", &["counters.sent{type}"]),
    counter("packets_dropped_total", "Packets that were dropped, by reason.",
        &["counters.dropped{reason+conflict}", "partitions[pid].dropped{reason+conflict}"]),
    counter("packets_rejected_total", "Packets that were answered with REJECT, by reason.",
        &["counters.rejected{reason+conflict}"]),
    counter("datagrams_sent_total", "Datagrams that were sent.",
        &["counters.datagrams_sent", "partitions[pid].packets_sent"]),
    counter("datagrams_unsent_total", "Datagrams that were dropped before they left.",
        &["counters.sends_dropped", "partitions[pid].sends_dropped"]),
    counter("datagrams_refused_total", "Datagrams that the kernel refused to send.",
        &["counters.sends_refused"]),

    counter("plane_packets_total",
        "Packets that the program in the kernel or switch handled, by verdict.",
        &[
            "counters{verdict:changed,answered,passed,unsent}",
            "plane.counters{verdict:changed,answered,passed,unsent}",
        ]),
    counter("plane_packets_dropped_total",
        "Packets that a replica's program in the kernel dropped, by reason.",
        &["plane.counters.dropped{reason}"]),
    counter("plane_packets_by_process_total",
        "Packets that the process handled for its program in the kernel.",
        &["plane{work:answered_by_process,multicast_by_process,unsent_by_process}"]),
    counter("plane_frames_refused_total", "Frames that a DPDK port didn't take, by reason.",
        &["plane{reason:missed,others,too_long,malformed,damaged}"]),
    gauge("plane_port_up", "1 while the DPDK port has a link.", &["plane.up"]),
    gauge("plane_unreachable_members", "Members whose hardware address isn't known.",
        &["plane.unreachable#"]),

    gauge("leading", "1 if this node leads (stamps) the group.", &["groups[group].leading"]),
    gauge("epoch", "Epoch (session) that the node knows as the newest; 0 if none.",
        &["groups[group].epoch?", "epoch?"]),
    gauge("window_instances", "Instances that may be open at once.", &["groups[group].window"]),
    gauge("open_instances", "Instances that aren't trimmed yet.",
        &["groups[group].partitions[pid].open"]),
    gauge("next_instance", "The next instance to propose (leader) or execute (replica).",
        &["groups[group].partitions[pid].next", "partitions[pid].next"]),
    gauge("trimmed_instance", "Everything below this instance is trimmed.",
        &["groups[group].partitions[pid].trimmed", "groups[group].partitions[pid].trim"]),

    gauge("acceptor_member", "1 if the acceptor's memory is a member of an epoch.",
        &["groups[group].member"]),
    gauge("acceptor_mute", "1 while the acceptor's memory waits to be compared.",
        &["groups[group].mute"]),
    gauge("memory_starts", "How often this memory has been started.",
        &["groups[group].start", "partitions[pid].nopaxos.start"]),
    gauge("ring_slots", "Slots of a partition's ring.", &["groups[group].slots"]),
    gauge("ring_used_slots", "Slots in use; a full ring stops the partition.",
        &["groups[group].partitions[pid].used"]),
    gauge("end_instance", "One more than the highest instance voted for.",
        &["groups[group].partitions[pid].end"]),
    gauge("floor_epoch", "Epoch of the acceptor's promise.",
        &["groups[group].partitions[pid].floor"]),
    gauge("reported_trim_instance",
        "The last TRIM of each replica, which shows who holds the ring back.",
        &["groups[group].partitions[pid].reports[replica].trim"]),

    gauge("active_epoch", "Epoch (session) in force; 0 while there is none.",
        &["groups[group].active?"]),
    scaled(gauge("epoch_change_seconds", "How long the epoch on its way has been on its way; 0 if \
                                          none is.", &["groups[group].attempt?.for_ms"]), 1e-3),
    gauge("member_alive", "1 if a probed member answers.", &["groups[group].members[node].alive"]),
    gauge("suspected_members", "Members that don't answer.", &["groups[group].suspects#"]),
    counter("backups_total", "Backups of the cluster that this controller has made.",
        &["backup.made"]),
    counter("backups_failed_total", "Backups that failed.", &["backup.failed"]),
    gauge("backup_age_seconds", "Age of the last backup that this controller made or found.",
        &["backup.age_s"]),
    gauge("backup_archive_lag_seconds",
        "Seconds up to which a loss of all machines would lose what was decided.",
        &["backup.archive.lag_s"]),
    counter("backup_archive_holes_total", "Holes in the archive, behind which a backup is made.",
        &["backup.archive.holes"]),
    gauge("behind_replicas", "Replicas that must fetch another one's state.",
        &["groups[group].behind#"]),
    counter("lanes_refused_total", "Repair lanes that were refused to command lines.",
        &["groups[group].refused_lanes"]),
    scaled(gauge("last_failover_seconds", "Duration of the last change of epoch.",
        &["groups[group].last_failover.duration_us"]), 1e-6),
    histogram("failover_duration_seconds",
        "Time from when a new epoch was needed until its leader showed its round.",
        &["groups[group].failovers.durations"]),
    histogram("failover_stage_seconds", "Time that a change of epoch spent in each stage.",
        &["groups[group].failovers.stages{stage}"]),

    histogram("log_sync_seconds", "Time to write and sync a frame of the log.",
        &["log.syncs", "partitions[pid].log.syncs"]),
    gauge("log_segments", "Files of the log.", &["log.segments", "partitions[pid].log.segments"]),
    counter("log_frames_total", "Frames in the log since it began.",
        &["log.frames", "partitions[pid].log.frames"]),
    counter("log_overlapped_syncs_total", "Syncs during which the next packets were taken.",
        &["log.overlapped", "partitions[pid].log.overlapped"]),
    counter("log_rewritten_slots_total", "Slots that were written once more, to free segments.",
        &["log.rewritten", "partitions[pid].log.rewritten"]),
    counter("log_checks_total", "How often all segments were read and checked.",
        &["log.checks", "partitions[pid].log.checks"]),
    counter("log_damaged_segments_total", "Segments that were found damaged.",
        &["log.damaged", "partitions[pid].log.damaged"]),
    gauge("log_unrepaired_segments", "Damaged segments that are still needed.",
        &["log.unrepaired", "partitions[pid].log.unrepaired"]),

    gauge("checkpoint_instance", "Everything below this instance is in the replica's checkpoint.",
        &["partitions[pid].checkpoint"]),
    gauge("waiting_instances", "Decided instances that wait behind a gap.",
        &["partitions[pid].waiting"]),
    gauge("waits_for_siblings", "1 while a multi-partition command waits for other partitions.",
        &["partitions[pid].waits_for_siblings"]),
    gauge("execution_stopped", "1 while execution is stopped until another epoch is active.",
        &["partitions[pid].stopped"]),
    gauge("catching_up", "1 while the partition needs another replica's state.",
        &["partitions[pid].catching_up!"]),
    gauge("waits_before_deadly_command", "1 while the partition waits before a command of which \
                                          its program died.", &["partitions[pid].deadly!"]),
    gauge("voided_commands", "Remembered commands that took no effect because programs died of \
                              them.", &["partitions[pid].voided#"]),
    gauge("sessions", "Client sessions.", &["partitions[pid].sessions"]),
    gauge("kept_outcomes", "Outcomes that are kept for clients that may ask again.",
        &["partitions[pid].kept_outcomes"]),
    counter("commands_total", "Commands that were executed.", &["partitions[pid].commands"]),
    counter("noops_total", "Instances without a command.", &["partitions[pid].noops"]),
    counter("repaired_instances_total", "Instances that were read from acceptors because their \
                                         votes were lost.", &["partitions[pid].repaired"]),
    counter("malformed_values_total", "Decided values that are no command.",
        &["partitions[pid].malformed"]),
    counter("checkpoints_total", "Checkpoints.", &["partitions[pid].checkpoints"]),
    counter("commits_total", "Commits of the store.", &["partitions[pid].commits"]),
    counter("commit_holds_total", "Commits that waited for another partition.",
        &["partitions[pid].commit_holds"]),
    counter("rollbacks_total", "Rollbacks, when a later view's log differed.",
        &["partitions[pid].rollbacks"]),
    counter("store_cpu_seconds_total", "CPU time of the store's own threads.",
        &["partitions[pid].store_cpu_s"]),
    gauge("busy_workers", "Workers that didn't answer a question for their status.",
        &["busy_workers"]),
    counter("digests_refused_total", "Questions for digests that were refused.",
        &["refused_digests"]),
    counter("state_connections_refused_total", "Connections for the replica's state that were \
                                                refused.", &["refused_connections"]),
    scaled(gauge("catch_up_fetched_bytes",
        "Bytes of another replica's state that are here already.",
        &["catch_up.fetched_mib"]), 1_048_576.0),
    gauge("catch_up_log_bytes", "Bytes of the log that was fetched after that state.",
        &["catch_up.log_bytes"]),
    counter("copies_total", "Copies that were made.", &["copies.made"]),
    counter("copies_failed_total", "Copies that failed.", &["copies.failed"]),
    gauge("copy_age_seconds", "Age of the last copy.", &["copies.age_s"]),

    gauge("nopaxos_leads", "1 if the replica leads the partition.",
        &["partitions[pid].nopaxos.leads"]),
    gauge("nopaxos_mute", "1 while the replica's log waits to be compared.",
        &["partitions[pid].nopaxos.mute"]),
    gauge("nopaxos_in_conflict", "1 if two commands have one place in the log.",
        &["partitions[pid].nopaxos.in_conflict"]),
    gauge("nopaxos_session", "Session of the replica's view.",
        &["partitions[pid].nopaxos.session"]),
    gauge("nopaxos_leader_number", "Leader number of the replica's view.",
        &["partitions[pid].nopaxos.leader_number"]),
    gauge("nopaxos_filled_instance", "The log is filled below this place.",
        &["partitions[pid].nopaxos.filled"]),
    gauge("nopaxos_stable_instance", "The log never changes below this place.",
        &["partitions[pid].nopaxos.stable"]),
    gauge("nopaxos_open_gaps", "Places of the log that are being asked for.",
        &["partitions[pid].nopaxos.gaps"]),
    counter("nopaxos_gaps_asked_total", "Places that were asked for.",
        &["partitions[pid].nopaxos.gaps_asked"]),
    counter("nopaxos_gaps_found_total", "Places that another replica had.",
        &["partitions[pid].nopaxos.gaps_found"]),
    counter("nopaxos_gaps_given_up_total", "Places that became no-ops.",
        &["partitions[pid].nopaxos.gaps_given_up"]),
    counter("nopaxos_view_changes_total", "Changes of view.",
        &["partitions[pid].nopaxos.view_changes"]),
    counter("nopaxos_synchronisations_total", "Synchronisations that raised the stable place.",
        &["partitions[pid].nopaxos.synchronisations"]),
    counter("nopaxos_crowds_total", "Times that too many places were open at once.",
        &["partitions[pid].nopaxos.crowds"]),

    gauge("front_end_connected", "Redis clients that are connected.", &["front_end.connected"]),
    counter("front_end_connections_total", "Connections of Redis clients.",
        &["front_end.connections"]),
    counter("front_end_connections_refused_total",
        "Connections that were refused because there were too many.",
        &["front_end.connections_refused"]),
    counter("front_end_output_limit_reached_total",
        "Connections that were ended for letting answers pile up.",
        &["front_end.output_limit_reached"]),
    counter("front_end_evicted_total", "Connections that were ended because all together kept too \
                                        much memory.", &["front_end.evicted"]),
    histogram("front_end_answer_seconds",
        "Time until replicas answered a client's command, of one in sixteen.",
        &["front_end.answer_times"]),
    gauge("front_end_memory_bytes", "Memory that connections keep.", &["front_end.memory_bytes"]),
    counter("front_end_commands_total", "Commands of Redis clients.", &["front_end.commands"]),
    counter("front_end_logged_total", "Commands that went into the log.", &["front_end.logged"]),
    counter("front_end_reads_total", "Commands that were answered without the log.",
        &["front_end.reads"]),
    counter("front_end_reads_given_up_total", "Reads that went through the log after all.",
        &["front_end.reads_given_up"]),
    counter("front_end_refused_for_memory_total",
        "Commands that were refused because the Redis servers have too much memory.",
        &["front_end.refused_for_memory"]),
    gauge("front_end_servers_bytes", "Memory of the Redis servers.", &["front_end.servers_bytes"]),
    gauge("front_end_servers_max_bytes", "Memory that the Redis servers may have; 0 without a \
                                          limit.", &["front_end.servers_max_bytes"]),
    counter("front_end_errors_total", "Answers that were errors.", &["front_end.errors"]),
    counter("front_end_protocol_errors_total", "Connections that sent something that isn't RESP.",
        &["front_end.protocol_errors"]),
    counter("front_end_sessions_lost_total", "Sessions that expired while commands were in flight.",
        &["front_end.sessions_lost"]),
    counter("front_end_tls_handshakes_total", "TLS handshakes that succeeded.",
        &["front_end.tls_handshakes"]),
    counter("front_end_tls_refused_total", "TLS handshakes that one side refused.",
        &["front_end.tls_refused"]),
    counter("front_end_tls_unfinished_total", "TLS handshakes that weren't finished.",
        &["front_end.tls_unfinished"]),
    counter("front_end_tls_missing_total", "Clients that didn't speak TLS although they must.",
        &["front_end.tls_missing"]),
    gauge("front_end_tls_trouble", "1 while the certificate's files can't be used.",
        &["front_end.tls_trouble"]),
    gauge("front_end_replicas_that_differ", "Replicas whose Redis server has other contents.",
        &["front_end.replicas_that_differ"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_say_their_type_and_unit() {
        let mut names = BTreeSet::new();
        for family in FAMILIES {
            let name = family.name;
            assert!(names.insert(name), "{name} is there twice");
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(plain), "{name}");
            let is_counter = family.kind == MetricType::Counter;
            assert_eq!(name.ends_with("_total"), is_counter, "{name}");
            let units = ["_ms", "_us", "_mib", "_s"];
            assert!(!units.iter().any(|unit| name.ends_with(unit)), "{name}");
            let is_histogram = family.kind == MetricType::Histogram;
            assert!(!is_histogram || name.ends_with("_seconds"), "{name}");
            assert!(family.help.ends_with('.'), "{name}");
        }
    }
}
