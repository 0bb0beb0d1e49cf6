use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libloading::Library;

use super::driver::Driver;
use super::references::with_driver;
use super::{Cuda, devices, measured, test};
use crate::device::batches_tests::{Work, works};
use crate::device::{About, Check, Device, Fault, FaultKind};

/// The library in place of the driver has one state for the process.
static STATE: Mutex<()> = Mutex::new(());

/// The library in place of the driver.
struct StandIn {
    library: Library,
    _guard: MutexGuard<'static, ()>,
}

/// What it does wrong; numbers of calls and launches count from 1, and 0 is never.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
struct Faults {
    /// This call and all after it return the code.
    fail_call: c_uint,
    code: c_uint,
    /// This launch writes a wrong bit.
    lie_launch: c_uint,
    skip_launch: c_uint,
    /// This copy of results to the host is left out.
    skip_fetch: c_uint,
    /// This copy has a wrong bit in the byte whose number follows.
    spoil_fetch: c_uint,
    spoil_byte: c_uint,
    /// From this question on whether work is done, the device does no more of it.
    hang_query: c_uint,
}

impl StandIn {
    const PATH: &str = env!("ONEFOLD_STANDIN");

    fn new() -> Self {
        let guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the build script has built it for this.
        Self { library: unsafe { Library::new(Self::PATH) }.unwrap(), _guard: guard }
    }

    fn begin(&self, faults: Faults, architecture: c_uint) {
        // SAFETY: these are the types of the function in standin.cpp.
        unsafe {
            type Begin = unsafe extern "C" fn(*const Faults, c_uint);
            let begin = self.library.get::<Begin>(b"onefold_standin_begin\0").unwrap();
            begin(&raw const faults, architecture);
        }
    }

    fn number(&self, name: &[u8]) -> c_uint {
        // SAFETY: this is the type of both functions in standin.cpp.
        unsafe { self.library.get::<unsafe extern "C" fn() -> c_uint>(name).unwrap()() }
    }

    fn test(&self, faults: Faults, architecture: c_uint) -> Result<About, Fault> {
        self.begin(faults, architecture);
        let outcome =
            Driver::open_any(&[Self::PATH]).and_then(|driver| test(&Arc::new(driver), 0)).map(|(about, _)| about);
        assert_eq!(self.number(b"onefold_standin_held\0"), 0, "everything is freed: {outcome:?}");
        outcome
    }

    /// Opens the device, which is then used with and without faults.
    fn open(&self) -> Arc<dyn Device> {
        self.begin(Faults::default(), 90);
        let driver = Arc::new(Driver::open_any(&[Self::PATH]).unwrap());
        Arc::new(Cuda::of(&driver, 0).unwrap())
    }

    /// Opens the driver, which waits half a second for a device that hangs, and a device that hangs is not one for the other tests.
    fn impatient() -> Arc<Driver> {
        let mut driver = Driver::open_any(&[Self::PATH]).unwrap();
        driver.answer_max = Duration::from_millis(500);
        driver.is_hung = Box::leak(Box::default());
        Arc::new(driver)
    }

    fn questions(&self) -> c_uint {
        self.number(b"onefold_standin_questions\0")
    }

    /// Does the work of batches, and counts calls from their beginning.
    fn work(&self, device: &Arc<dyn Device>, works: &[Work; 2], faults: Faults) -> Result<usize, Fault> {
        self.count_from_here(faults);
        let outcome = Work::run(device, works, Check::All);
        // The context and its module.
        assert_eq!(self.number(b"onefold_standin_held\0"), 2, "everything is freed: {outcome:?}");
        outcome
    }

    fn count_from_here(&self, faults: Faults) {
        // SAFETY: this is the type of the function in standin.cpp.
        unsafe {
            let count = self.library.get::<unsafe extern "C" fn(*const Faults)>(b"onefold_standin_count\0").unwrap();
            count(&raw const faults);
        }
    }

    fn launches(&self) -> c_uint {
        self.number(b"onefold_standin_launches\0")
    }
}

#[test]
fn without_a_driver_the_device_is_absent() {
    let fault = Driver::open_any(&["libonefold-absent.so.1"]).err().unwrap();
    assert_eq!(fault.kind, FaultKind::Absent);
    assert_eq!(fault.to_string(), "there is no driver for NVIDIA GPUs");
}

#[test]
fn a_library_without_the_functions_is_unsuitable() {
    let fault = Driver::open_any(&["libc.so.6"]).err().unwrap();
    assert_eq!(fault.kind, FaultKind::Unsuitable);
}

#[test]
fn a_device_is_described_and_passes_its_test() {
    let device = StandIn::new();
    device.begin(Faults::default(), 90);
    let listed = devices(&Driver::open_any(&[StandIn::PATH]).unwrap()).unwrap();
    let about = About {
        name: "the processor".to_owned(),
        architecture: 90,
        multiprocessors: 8,
        memory_bytes: 1 << 30,
        driver: 12_090,
    };
    assert_eq!(listed, std::slice::from_ref(&about));
    assert_eq!(test(&Arc::new(Driver::open_any(&[StandIn::PATH]).unwrap()), 1).unwrap_err().kind, FaultKind::Absent);
    assert_eq!(device.test(Faults::default(), 90).unwrap(), about);
    // 1 of gear, 1 + 3 x 3 of BLAKE3, 4 x 2 of SHA, 1 of the number, 1 + 1 + 16 x 3 + 1 of references.
    assert_eq!(device.launches(), 71);
    // Newer than all machine code.
    assert_eq!(device.test(Faults::default(), 130).unwrap().architecture, 130);
    assert_eq!(device.test(Faults::default(), 70).unwrap_err().kind, FaultKind::Unsuitable);
}

#[test]
fn an_error_at_any_call_is_a_fault_and_everything_is_freed() {
    let device = StandIn::new();
    let mut failed = 0;
    for call in 1.. {
        // The first calls one by one, then a sample: later ones repeat them.
        if 50 < call && call % 19 != 0 {
            continue;
        }
        match device.test(Faults { fail_call: call, code: 719, ..Faults::default() }, 90) {
            Err(fault) => assert_eq!(fault.kind, FaultKind::Lost, "call {call}: {fault}"),
            Ok(_) => break,
        }
        failed = call;
    }
    assert!(200 < failed, "{failed}");
    for (code, kind) in [(2, FaultKind::OutOfMemory), (209, FaultKind::Unsuitable), (100, FaultKind::Absent)] {
        let fault = device.test(Faults { fail_call: 1, code, ..Faults::default() }, 90).unwrap_err();
        assert_eq!(fault.kind, kind, "{fault}");
    }
    let fault = device.test(Faults { fail_call: 30, code: 12_345, ..Faults::default() }, 90).unwrap_err();
    assert!(fault.to_string().ends_with("unknown (12345)"), "{fault}");
}

#[test]
fn a_wrong_bit_and_a_kernel_that_did_not_run_are_found_at_each_launch() {
    let device = StandIn::new();
    device.test(Faults::default(), 90).unwrap();
    let launches = device.launches();
    // All but the 14 passes of the sort between the first and the last, of three launches each.
    let passes = launches - 1 - 48;
    for launch in (1..=passes + 3).chain(launches - 3..=launches) {
        let skipped = device.test(Faults { skip_launch: launch, ..Faults::default() }, 90);
        assert_eq!(skipped.map_err(|fault| fault.kind), Err(FaultKind::Wrong), "launch {launch} did not run");
        let lied = device.test(Faults { lie_launch: launch, ..Faults::default() }, 90);
        assert_eq!(lied.map_err(|fault| fault.kind), Err(FaultKind::Wrong), "launch {launch} wrote a wrong bit");
    }
}

#[test]
fn references_on_a_device_are_those_of_a_map_or_a_fault() {
    let device = StandIn::new();
    let names = |count: u32| (0..count).map(|j| [j % 7, j % 3, 5, j / 500].map(|word| word.wrapping_mul(0x9e37_79b1)));
    let find = |count: u32, ctas: u32, faults: Faults, sorts: bool| {
        device.begin(faults, 90);
        let words: Vec<u32> = (0..4).flat_map(|w| names(count).map(move |name| name[w])).collect();
        let driver = Arc::new(Driver::open_any(&[StandIn::PATH])?);
        let found = with_driver(&driver, 0, |_, references| {
            if sorts { references.by_sorting(&words, ctas) } else { references.backward(&words, ctas) }
        });
        drop(driver);
        assert_eq!(device.number(b"onefold_standin_held\0"), 0, "everything is freed: {found:?}");
        found?
    };
    for count in [0, 1, 2, 1300, 4200] {
        let mut known = std::collections::HashMap::new();
        let expected: Vec<u32> = (0..).zip(names(count)).map(|(j, name)| *known.entry(name).or_insert(j)).collect();
        for ctas in [1, 3, 40] {
            if count <= 1300 {
                assert_eq!(find(count, ctas, Faults::default(), false).unwrap(), expected);
            }
            assert_eq!(find(count, ctas, Faults::default(), true).unwrap(), expected, "{count} sorted");
        }
    }
    let skipped = find(1300, 3, Faults { skip_launch: 1, ..Faults::default() }, false);
    assert_eq!(skipped.map_err(|fault| fault.kind), Err(FaultKind::Wrong));
    for (sorts, least) in [(false, 12), (true, 60)] {
        for call in 1.. {
            match find(300, 3, Faults { fail_call: call, code: 719, ..Faults::default() }, sorts) {
                Err(fault) => assert_eq!(fault.kind, FaultKind::Lost, "call {call}"),
                Ok(found) => {
                    assert!(least < call && found.len() == 300, "{call}");
                    break;
                }
            }
        }
    }
}

#[test]
fn all_pairs_of_many_names_have_more_time() {
    let stand_in = StandIn::new();
    // The device answers three questions, until the memory is ready, and none after the launch.
    stand_in.begin(Faults { hang_query: 4, ..Faults::default() }, 90);
    let words = vec![0; 4 * 20_000];
    let found = with_driver(&StandIn::impatient(), 0, |_, references| references.backward(&words, 1)).unwrap();
    // 200 million pairs have 0.2 s.
    assert_eq!(found, Err(Fault::new(FaultKind::Lost, "the device has not answered for 0.7 s")));
}

#[test]
fn rates_are_measured_for_each_kernel_of_a_backup() {
    let stand_in = StandIn::new();
    stand_in.begin(Faults::default(), 90);
    let driver = Arc::new(Driver::open_any(&[StandIn::PATH]).unwrap());
    let rates = measured(&driver, 0, 32 << 10, 2).unwrap();
    assert_eq!(rates.len(), 8);
    assert!(rates.iter().all(|rate| rate.seconds.len() == 2 && 0.0 < rate.seconds[0] && rate.bytes == 32 << 10));
    assert_eq!(measured(&driver, 0, 100, 2).unwrap_err().kind, FaultKind::Unsuitable);
    assert_eq!(stand_in.number(b"onefold_standin_held\0"), 0);
}

#[test]
fn batches_on_the_driver_equal_the_specification() {
    let stand_in = StandIn::new();
    let device = stand_in.open();
    let works = works();
    assert_eq!(stand_in.work(&device, &works, Faults::default()).unwrap(), 2 * 2 * (5 + 12));
}

#[test]
fn an_error_at_any_call_of_a_batch_is_a_fault_and_everything_is_freed() {
    let stand_in = StandIn::new();
    let device = stand_in.open();
    let works = works();
    stand_in.work(&device, &works, Faults::default()).unwrap();
    let calls = stand_in.number(b"onefold_standin_calls\0");
    let mut failed = 0;
    // Each call enters the context first, so that every other one would do; a step that is odd hits both.
    for call in (1..calls).step_by(7) {
        match stand_in.work(&device, &works, Faults { fail_call: call, code: 719, ..Faults::default() }) {
            Err(fault) => {
                assert_eq!(fault.kind, FaultKind::Lost, "call {call}: {fault}");
                failed += 1;
            }
            // What fails while everything is freed is nobody's fault.
            Ok(_) => assert!(2 * calls / 3 < call, "call {call} of {calls}"),
        }
    }
    assert!(30 < failed, "{failed}");
}

#[test]
fn a_device_that_hangs_in_a_batch_is_lost_and_nothing_is_freed_that_it_may_use() {
    let stand_in = StandIn::new();
    let works = works();
    let device = stand_in.open();
    stand_in.work(&device, &works, Faults::default()).unwrap();
    let questions = stand_in.questions();
    drop(device);
    assert!(80 < questions, "{questions}");
    let hung = Fault::new(FaultKind::Lost, "the device has not answered for 0.5 s");
    // Those of the end, when everything is freed, are in the next test.
    for question in (1..questions * 2 / 3).step_by(13) {
        stand_in.begin(Faults::default(), 90);
        let driver = StandIn::impatient();
        let device: Arc<dyn Device> = Arc::new(Cuda::of(&driver, 0).unwrap());
        stand_in.count_from_here(Faults { hang_query: question, ..Faults::default() });
        // The library ends the process if a call waits.
        assert_eq!(Work::run(&device, &works, Check::All), Err(hung.clone()), "question {question}");
        assert_eq!(device.allocate(1).err(), Some(hung.clone()));
        drop(device);
        assert_eq!(stand_in.number(b"onefold_standin_calls_since\0"), 0, "nothing is called any more");
        assert!(2 < stand_in.number(b"onefold_standin_held\0"), "memory is still there");
        assert_eq!(Cuda::of(&driver, 0).err().map(|fault| fault.kind), Some(FaultKind::Lost), "nor opened again");
    }
}

#[test]
fn a_device_that_hangs_in_its_test_is_lost() {
    let stand_in = StandIn::new();
    stand_in.test(Faults::default(), 90).unwrap();
    let questions = stand_in.questions();
    for question in [1, 2, 30, 71, 200, questions - 1] {
        stand_in.begin(Faults { hang_query: question, ..Faults::default() }, 90);
        let fault = test(&StandIn::impatient(), 0).map(|(about, context)| (about, drop(context)));
        if question == questions - 1 {
            // It is asked while the last memory is freed: no result depends on it.
            fault.unwrap();
        } else {
            let hung = Fault::new(FaultKind::Lost, "the device has not answered for 0.5 s");
            assert_eq!(fault.unwrap_err(), hung, "{question} of {questions}");
        }
        assert_eq!(stand_in.number(b"onefold_standin_calls_since\0"), 0, "question {question}");
    }
}

#[test]
fn a_wrong_or_stale_result_of_a_batch_is_found_in_each_field() {
    let stand_in = StandIn::new();
    let device = stand_in.open();
    let works = works();
    stand_in.work(&device, &works, Faults::default()).unwrap();
    let (launches, fetches) = (stand_in.launches(), stand_in.number(b"onefold_standin_fetches\0"));
    // In each of two rounds, for each of two batches: gear and the number; expand, leaves, trees and the number.
    assert_eq!((launches, fetches), (2 * 2 * 6, 2 * 2 * 2));
    let is_wrong = |faults| stand_in.work(&device, &works, faults).is_err_and(|fault| fault.kind == FaultKind::Wrong);
    // Results that are taken are right. Some lies change nothing: the first chunk is empty, so that its leaf may start anywhere, and the second
    // round has the lists of the first one.
    let mut found = 0;
    for launch in 1..=launches {
        found += u32::from(is_wrong(Faults { skip_launch: launch, ..Faults::default() }));
        found += u32::from(is_wrong(Faults { lie_launch: launch, ..Faults::default() }));
    }
    assert!(2 * launches - 10 < found, "{found} of {launches} launches that did not run, or lied");
    found = 0;
    for fetch in 1..=fetches {
        assert!(is_wrong(Faults { skip_fetch: fetch, ..Faults::default() }), "copy {fetch} was left out");
        for spoil_byte in (0..500).step_by(100).chain([usize::MAX >> 33]) {
            let spoil_byte = c_uint::try_from(spoil_byte).unwrap();
            found += u32::from(is_wrong(Faults { spoil_fetch: fetch, spoil_byte, ..Faults::default() }));
        }
    }
    // Every byte of names, and the first byte of the counts; slots behind the last candidate of a tile are nobody's.
    assert!(fetches / 2 * 7 <= found, "{found}");
}
