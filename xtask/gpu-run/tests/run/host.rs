//! Hosts that are made up: what lies below their root, what is found on their search path, and programs that stand for ours.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{RwLock, RwLockReadGuard};

use tempfile::TempDir;

pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/run.sh");
const PROGRAM: &str = env!("CARGO_BIN_EXE_burn-fp8-gpu-run");

/// Held to write while a process starts, to read while a program is written. A process that starts inherits, until it is another
/// program, what other threads have open for writing, and what is open for writing cannot be run: "text file busy".
static STARTING: RwLock<()> = RwLock::new(());

fn writing() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap()
}

/// Runs a command to its end.
pub fn run_to_end(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _alone = STARTING.write().unwrap();
        command.spawn().unwrap()
    };
    child.wait_with_output().unwrap()
}

const HEADERS: [&str; 8] = [
    "cuda_runtime.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_fp8.h",
    "mma.h",
    "crt/host_defines.h",
    "cooperative_groups.h",
    "cccl/cuda/barrier",
];

/// What scripts use of a Linux. Nothing else of the machine that runs the tests is on the search path.
const TOOLS: [&str; 6] = ["cat", "dirname", "mkdir", "pwd", "sleep", "uname"];

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
        host.program(
            "archive/bin/burn-fp8-tests",
            r#"if [ "$1" = --list ]; then printf 'codes::fused::a: test\ncodes::unfused::a: test\nproducts::fused::b: test\n'; exit; fi
echo "$BURN_FP8_GOLDEN $*""#,
        );
        host.program(
            "archive/bin/burn-fp8-gpu",
            r#"if [ "$1" = report ]; then echo '{}' >"$2/results.json"; else echo "$*"; fi"#,
        );
        for (program, tests) in [
            ("burn-fp8-cublaslt-tests", r"epilogues::c: test\nd: test\n"),
            ("burn-fp8-kernels-tests", r"quantize::e: test\n"),
        ] {
            host.program(
                &format!("archive/bin/{program}"),
                &format!("if [ \"$1\" = --list ]; then printf '{tests}'; fi"),
            );
        }
        host.digits("echo trained");
        host.fused_matmul(5);
        host.char_lm(12);
        host
    }

    /// With everything that a run needs, for CUDA 13.0.
    pub fn complete() -> Self {
        let host = Self::bare();
        for library in ["libcuda.so.1", "libnvrtc.so.13.0.88", "libcublasLt.so.13"] {
            host.file(&format!("lib/{library}"), "");
        }
        symlink("libnvrtc.so.13.0.88", host.path("lib/libnvrtc.so.13")).unwrap();
        for header in HEADERS {
            host.file(&format!("root/usr/local/cuda/include/{header}"), "");
        }
        host.driver("NVIDIA H200, 9.0, 580.1", "13.0");
        host
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _writing = writing();
        fs::write(path, text).unwrap();
    }

    pub fn program(&self, name: &str, script: &str) {
        let begin = if script.starts_with("#!") { "" } else { "#!/bin/sh\n" };
        self.file(name, &format!("{begin}{script}\n"));
        fs::set_permissions(self.path(name), Permissions::from_mode(0o755)).unwrap();
    }

    /// A model that trains into a new folder, and a block of which this many of twelve products run on tensor cores with delayed scaling.
    pub fn char_lm(&self, native: usize) {
        let of =
            |name, native| format!("echo '{name}: {native} of 12 FP8 products on tensor cores.'");
        let lines = [of("current", 12), of("delayed", native), of("layers", 12)].join("; ");
        let script = format!(
            "case $1 in train) [ ! -e char-lm ] || exit 2; mkdir char-lm;; block) {lines};; esac"
        );
        self.program("archive/bin/char-lm", &script);
    }

    /// An example that finds its configuration, and then does this.
    pub fn digits(&self, script: &str) {
        let find = r#"while [ "$1" != --config ]; do shift || exit 2; done"#;
        self.program("archive/bin/digits", &format!("{find}\nconfig=$(cat \"$2\")\n{script}"));
    }

    /// An example that runs this many of its eight products on tensor cores.
    pub fn fused_matmul(&self, native: usize) {
        let ran = |index| match index < native {
            true => "native: algorithm 66, tile 18, by heuristics",
            false => "fake-quantized: cuBLASLt 13.0.0 has no algorithm for the FP8 product",
        };
        let product = |index| format!("scaled_matmul 1 × 64×96×128, {}", ran(index));
        let of_one = (0..6).map(|index| format!("echo '    ran 1 product: {}'", product(index)));
        let of_two = format!("echo '    ran 2 products: {}; {}'", product(6), product(7));
        let lines: Vec<_> = of_one.chain([of_two]).collect();
        self.program("archive/bin/fused_matmul", &lines.join("\n"));
    }

    /// An nvidia-smi that knows this device and this version of CUDA.
    pub fn driver(&self, device: &str, cuda: &str) {
        self.program(
            "bin/nvidia-smi",
            &format!(
                "if [ $# = 0 ]; then echo '| Driver Version: 580.1  CUDA Version: {cuda} |'; else echo '0, GPU-0, {device}'; fi"
            ),
        );
    }

    /// An nvidia-smi that knows these devices, each with index and UUID.
    pub fn devices(&self, lines: &str) {
        self.program(
            "bin/nvidia-smi",
            &format!("if [ $# = 0 ]; then echo 'CUDA Version: 13.0'; else printf '{lines}'; fi"),
        );
    }

    /// A Python without torch, with wheels in `site/nvidia`. Returns its path.
    pub fn python(&self) -> PathBuf {
        let site = self.path("site/nvidia");
        let script = format!(
            "case $2 in *find_spec*) echo '{}';; *) echo \"No module named 'torch'\"; exit 1;; esac",
            site.display()
        );
        self.program("venv/bin/python", &script);
        self.path("venv/bin/python")
    }

    /// A call of the script on this host, and on nothing of the machine that runs the tests.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.path("archive/run.sh"));
        command
            .current_dir(self.folder.path())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_PATH")
            .env("PATH", self.path("bin"))
            .env("BURN_FP8_HOST_ROOT", self.path("root"))
            .env("LD_LIBRARY_PATH", self.path("lib"));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        run_to_end(self.command().args(["--python", "/no/such/python"]).args(arguments))
    }

    /// What the script finds missing.
    #[track_caller]
    pub fn missing(&self) -> String {
        missing(&self.run(&["--check-only"]))
    }

    /// Phases with their status, as the last run left them.
    pub fn phases(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.path("results/phases.tsv")).unwrap();
        let columns = |line: &str| {
            let mut columns = line.split('\t').map(str::to_owned);
            (columns.next().unwrap(), columns.next().unwrap())
        };
        text.lines().map(columns).collect()
    }
}

#[track_caller]
pub fn missing(output: &Output) -> String {
    let text = error(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    text.split_once("Missing:").expect("a list").1.to_owned()
}

pub fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Removes a file of a host.
pub fn remove(path: &Path) {
    fs::remove_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
