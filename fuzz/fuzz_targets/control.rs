#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wirepaxos_fuzz::control::run(data));
