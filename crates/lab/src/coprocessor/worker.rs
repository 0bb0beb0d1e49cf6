//! Jobs in processes of their own, which may be kept from using instructions.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::monitor::Monitor;
use serde::{Deserialize, Serialize};

use crate::coprocessor::code::{Code, VARIABLE};
use crate::coprocessor::fingerprint::{FingerprintDone, FingerprintJob};
use crate::coprocessor::kernel::{KernelDone, KernelJob};
use crate::coprocessor::pipeline::{PipelineDone, PipelineJob};
use crate::coprocessor::vector::VectorJob;

/// Longest job and longest result, as JSON: the results of a hundred thousand intervals.
const TEXT_BYTES_MAX: u64 = 64 << 20;
/// Time between two looks at a process.
const POLL: Duration = Duration::from_millis(2);
/// Most of what a process complains of that is shown.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// A job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Hashes or encrypts.
    Kernel(KernelJob),
    /// Takes dumps through a deduplication server.
    Pipeline(PipelineJob),
    /// Finds boundaries or names chunks with one of this program's kernels.
    Vector(VectorJob),
    /// Names chunks on several threads.
    Fingerprint(FingerprintJob),
}

/// Its result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// Of a kernel.
    Kernel(KernelDone),
    /// Of a pipeline.
    Pipeline(PipelineDone),
    /// Of threads that name chunks.
    Fingerprint(FingerprintDone),
}

impl Job {
    /// Does it in this process.
    pub fn perform(&self, monitor: &dyn Monitor) -> Result<Done> {
        match self {
            Self::Kernel(job) => job.perform().map(Done::Kernel),
            Self::Pipeline(job) => job.perform(monitor).map(Done::Pipeline),
            Self::Vector(job) => job.perform().map(Done::Kernel),
            Self::Fingerprint(job) => job.perform().map(Done::Fingerprint),
        }
    }
}

/// Reads a job as JSON, does it in this process, and writes its result as JSON: the part of the process that a [`Worker`] starts.
pub fn serve(input: &mut dyn Read, output: &mut dyn Write, monitor: &dyn Monitor) -> Result<()> {
    let mut text = String::new();
    input.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    let job: Job = serde_json::from_str(&text).context("a job")?;
    serde_json::to_writer(&mut *output, &job.perform(monitor)?)?;
    Ok(output.flush()?)
}

/// Runs jobs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Worker {
    /// A program that calls [`serve`], and its arguments.
    program: Option<(PathBuf, Vec<OsString>)>,
}

/// A process that is ended if nobody waits for its result.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended already, or nothing more can be done.
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

impl Worker {
    /// Makes one that does all jobs in this process, with all instructions.
    pub fn in_process() -> Self {
        Self::default()
    }

    /// Makes one that starts a program with these arguments for each job; it has to call [`serve`] with its standard input and output.
    pub fn of_program(program: PathBuf, arguments: Vec<OsString>) -> Self {
        Self { program: Some((program, arguments)) }
    }

    /// Returns true if it can keep a job from using instructions.
    pub fn can_mask(&self) -> bool {
        self.program.is_some()
    }

    /// Does a job with code that may use some instructions. The monitor may stop it.
    pub fn perform(&self, job: &Job, code: Code, monitor: &dyn Monitor) -> Result<Done> {
        let Some((program, arguments)) = &self.program else {
            ensure!(code == Code::Instructions, "this process cannot do without instructions");
            return job.perform(monitor);
        };
        let shown = || program.display().to_string();
        let (mut output, mut complaints) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(complaints.try_clone()?);
        // Whatever the user's is would have an effect on one side of a comparison.
        command.env_remove(VARIABLE);
        command.envs(code.mask().map(|mask| (VARIABLE, mask)));
        let mut child = Ended(command.spawn().with_context(shown)?);
        // A process that does not read its job says why.
        let written = child
            .0
            .stdin
            .take()
            .map(|mut input| input.write_all(&serde_json::to_vec(job)?).map_err(anyhow::Error::from));
        let status = loop {
            if let Some(status) = child.0.try_wait().with_context(shown)? {
                break status;
            }
            if monitor.is_interrupted() {
                return Err(Error::Interrupted.into());
            }
            std::thread::sleep(POLL);
        };
        if !status.success() {
            let said = text_of(&mut complaints, COMPLAINT_BYTES_MAX)?;
            bail!("{} measures and ends with {status}: {}", shown(), said.trim_end());
        }
        written.transpose().with_context(shown)?;
        serde_json::from_str(&text_of(&mut output, TEXT_BYTES_MAX)?)
            .with_context(|| format!("the result of {}", shown()))
    }
}

fn text_of(file: &mut File, bytes_max: u64) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::coprocessor::kernel::Kernel;

    fn job() -> Job {
        Job::Kernel(KernelJob { kernel: Kernel::Sha1, block: 64, millis: 1 })
    }

    #[test]
    fn a_job_and_its_result_go_through_json() {
        let mut output = Vec::new();
        serve(&mut &serde_json::to_vec(&job()).unwrap()[..], &mut output, &Silent).unwrap();
        let Done::Kernel(done) = serde_json::from_slice(&output).unwrap() else { panic!("another result") };
        let Done::Kernel(here) = Worker::in_process().perform(&job(), Code::Instructions, &Silent).unwrap() else {
            panic!("another result")
        };
        assert_eq!(done.check, here.check);
        assert!(serve(&mut &b"{}"[..], &mut output, &Silent).unwrap_err().to_string().contains("a job"));
    }

    #[test]
    fn a_program_gets_the_mask_and_its_failure_is_reported() {
        let worker = |script: &str| Worker::of_program("/bin/sh".into(), vec!["-c".into(), script.into()]);
        let shown = |code| {
            let failed = worker(r#"echo "mask ${OPENSSL_ia32cap-none}" >&2; exit 3"#).perform(&job(), code, &Silent);
            failed.unwrap_err().to_string()
        };
        assert!(shown(Code::Instructions).contains("exit status: 3: mask none"));
        assert!(shown(Code::Vectors).ends_with(&format!("mask {}", Code::Vectors.mask().unwrap())));
        let result = worker("cat >/dev/null; echo nonsense").perform(&job(), Code::Baseline, &Silent);
        assert!(result.unwrap_err().to_string().contains("the result of /bin/sh"));
        assert!(Worker::of_program("/nowhere".into(), Vec::new()).perform(&job(), Code::Baseline, &Silent).is_err());
        assert!(Worker::in_process().perform(&job(), Code::Baseline, &Silent).is_err());
    }

    #[test]
    fn an_interruption_ends_the_process() {
        #[derive(Debug)]
        struct Interrupted;
        impl Monitor for Interrupted {
            fn is_interrupted(&self) -> bool {
                true
            }
        }
        let worker = Worker::of_program("/bin/sh".into(), vec!["-c".into(), "exec sleep 100".into()]);
        let error = worker.perform(&job(), Code::Instructions, &Interrupted).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Error::Interrupted)));
    }
}
