//! Hosts that are made up: what lies below their root, what is found on their search path, and programs that stand for ours.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::RwLock;

use tempfile::TempDir;

pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/run.sh");
const PROGRAM: &str = env!("CARGO_BIN_EXE_burn-fp8-gpu-run");

/// Held to write while a process starts, to read while a program is written. A process that starts inherits, until it is another
/// program, what other threads have open for writing, and what is open for writing cannot be run: "text file busy".
static STARTING: RwLock<()> = RwLock::new(());

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub status: Option<i32>,
    pub printed: String,
    pub error: String,
}

/// Runs a command to its end.
pub fn run_to_end(command: &mut Command) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _alone = STARTING.write().unwrap();
        command.spawn().unwrap()
    };
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let [printed, error] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
    Ended { status: status.code(), printed, error }
}

/// What a toolkit has of CUDA 13.
pub const TOOLKIT: [&str; 6] = [
    "include/cuda_runtime_api.h",
    "include/cuda_fp8.h",
    "include/crt/host_defines.h",
    "include/cccl/cuda/barrier",
    "lib64/libnvrtc.so.13",
    "lib64/libcublasLt.so.13",
];

/// What scripts use of a Linux. Nothing else of the machine that runs the tests is on the search path.
const TOOLS: [&str; 6] = ["cat", "dirname", "mkdir", "pwd", "sleep", "uname"];

/// Of the largest test program: those that compute-sanitizer watches.
pub const TESTS: &str = "codes::unfused::of_joined_dimensions products::unfused::are_deterministic";

/// A host and an unpacked archive with programs that do nothing.
pub struct Host {
    folder: TempDir,
}

impl Host {
    /// A Linux without anything of NVIDIA's.
    pub fn bare() -> Self {
        // Where the program is, too: it is linked into archives.
        let host = Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        for folder in ["bin", "root", "archive/bin"] {
            fs::create_dir_all(host.path(folder)).unwrap();
        }
        for tool in TOOLS {
            symlink(which::which(tool).unwrap(), host.path("bin").join(tool)).unwrap();
        }
        fs::hard_link(PROGRAM, host.path("archive/bin/burn-fp8-gpu-run")).unwrap();
        host.program("archive/run.sh", &fs::read_to_string(SCRIPT).unwrap());
        host.file("archive/MANIFEST", "revision\tabc\n");
        host.tests("burn-fp8", TESTS, "echo \"$BURN_FP8_GOLDEN $*\"");
        host.tests("burn-fp8-cublaslt", "epilogues::c d", "");
        host.tests("burn-fp8-kernels", "quantize::e", "");
        host.gpu(r#"if [ "$1" = report ]; then echo '{}' >"$2/results.json"; else echo "$*"; fi"#);
        host.digits("echo trained");
        host.fused_matmul(5);
        host.char_lm();
        host
    }

    /// With everything that a run needs, for CUDA 13.0.
    pub fn complete() -> Self {
        let host = Self::bare();
        host.toolkit("root/usr/local/cuda", "13000");
        host.driver("NVIDIA H200, 9.0, 580.1", "13.0");
        host
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _writing = STARTING.read().unwrap();
        // A link to another program is not to be followed.
        let _ = fs::remove_file(&path);
        fs::write(path, text).unwrap();
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub fn program(&self, name: &str, script: &str) {
        let begin = if script.starts_with("#!") { "" } else { "#!/bin/sh\n" };
        self.file(name, &format!("{begin}{script}\n"));
        fs::set_permissions(self.path(name), Permissions::from_mode(0o755)).unwrap();
    }

    /// A folder with all of CUDA, each library with its path for a text. Its headers say that they are of this version.
    pub fn toolkit(&self, folder: &str, version: &str) {
        for name in TOOLKIT {
            self.file(&format!("{folder}/{name}"), &format!("{folder}/{name}\n"));
        }
        let version = format!("#define CUDART_VERSION  {version}\n");
        self.file(&format!("{folder}/{}", TOOLKIT[0]), &version);
    }

    /// The program that looks at the device, measures and reports.
    pub fn gpu(&self, script: &str) {
        self.program("archive/bin/burn-fp8-gpu", script);
    }

    /// A test program that lists these tests, and else does this.
    pub fn tests(&self, package: &str, tests: &str, script: &str) {
        let list = format!(
            "if [ \"$1\" = --list ]; then for test in {tests}; do echo $test: test; done; exit; fi"
        );
        self.program(&format!("archive/bin/{package}-tests"), &format!("{list}\n{script}"));
    }

    /// A model that trains into a new folder.
    pub fn char_lm(&self) {
        let script = "[ $1 = train ] && [ ! -e char-lm ] || exit 2; mkdir char-lm";
        self.program("archive/bin/char-lm", script);
    }

    /// An example that finds its configuration, and then does this.
    pub fn digits(&self, script: &str) {
        let find = r#"while [ "$1" != --config ]; do shift || exit 2; done"#;
        self.program("archive/bin/digits", &format!("{find}\nconfig=$(cat \"$2\")\n{script}"));
    }

    /// An example that runs this many of its eight products on tensor cores.
    pub fn fused_matmul(&self, native: usize) {
        let ran = |index| match index < native {
            true => "native: algorithm 66, tile 18",
            false => "fake-quantized: cuBLASLt 13.0.0 has no algorithm for the FP8 product",
        };
        let lines = (0..8).map(|index| format!("echo '    ran 1 product: {}'", ran(index)));
        self.program("archive/bin/fused_matmul", &lines.collect::<Vec<_>>().join("\n"));
    }

    /// An nvidia-smi that knows this device and this version of CUDA.
    pub fn driver(&self, device: &str, cuda: &str) {
        self.devices(&format!("0, GPU-0, {device}"), cuda);
    }

    /// An nvidia-smi that knows these devices, each with index and UUID, and this version of CUDA.
    pub fn devices(&self, lines: &str, cuda: &str) {
        let heading = format!("echo '| Driver Version: 580.1  CUDA Version: {cuda} |'");
        let script = format!("if [ $# = 0 ]; then {heading}; else printf '{lines}'; fi");
        self.program("bin/nvidia-smi", &script);
    }

    /// A call of the script on this host, and on nothing of the machine that runs the tests.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.path("archive/run.sh"));
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("BURN_FP8_HOST_ROOT", self.path("root"))
            .args(["--python", "/no/such/python", "--out", "results"]);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ended {
        run_to_end(self.command().args(arguments))
    }

    /// What the script finds missing.
    #[track_caller]
    pub fn missing(&self) -> String {
        let Ended { status, error, .. } = self.run(&["--check-only"]);
        assert_eq!(status, Some(2), "{error}");
        error.split_once("Missing:").expect("a list").1.to_owned()
    }

    /// A file of the last run's output folder.
    pub fn result(&self, name: &str) -> String {
        fs::read_to_string(self.path("results").join(name)).unwrap()
    }

    /// Phases with their status, as the last run left them.
    pub fn phases(&self) -> Vec<[String; 2]> {
        let text = self.result("phases.tsv");
        let columns = |line: &str| {
            let mut columns = line.split('\t').map(str::to_owned);
            [columns.next().unwrap(), columns.next().unwrap()]
        };
        text.lines().map(columns).collect()
    }

    /// How a phase ended in the last run.
    #[track_caller]
    pub fn status(&self, phase: &str) -> String {
        let phases = self.phases();
        let found = phases.iter().find(|[name, _]| name == phase);
        found.unwrap_or_else(|| panic!("{phase} is not in {phases:?}"))[1].clone()
    }
}
