//! Hosts that are made up: what the script finds on them, and programs that stand for ours.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{RwLock, RwLockReadGuard};

use tempfile::TempDir;

pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/run.sh");

/// Held to write while a process starts, to read while a program is written. A process that starts inherits, until it is another
/// program, what other threads have open for writing, and what is open for writing cannot be run: "text file busy".
static STARTING: RwLock<()> = RwLock::new(());

fn writing() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap()
}

/// Runs a command to its end.
pub fn run_to_end(command: &mut Command) -> std::io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _alone = STARTING.write().unwrap();
        command.spawn()?
    };
    child.wait_with_output()
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

/// A real one would be found whatever a test makes up.
pub fn has_nvidia_driver() -> bool {
    Path::new("/dev/nvidiactl").exists() || Path::new("/usr/local/cuda").exists()
}

/// A host with everything, as far as the script can see, and an unpacked archive with programs that do nothing.
pub struct Host {
    folder: TempDir,
}

impl Host {
    pub fn complete() -> Self {
        let host = Self { folder: tempfile::tempdir().unwrap() };
        for library in ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"] {
            host.file(&format!("lib/{library}"), "");
        }
        for header in HEADERS {
            host.file(&format!("cuda/include/{header}"), "");
        }
        host.driver("NVIDIA H200, 9.0, 580.1", "13.0");
        fs::create_dir_all(host.path("archive")).unwrap();
        {
            let _writing = writing();
            fs::copy(SCRIPT, host.path("archive/run.sh")).unwrap();
        }
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
        host.program(
            "archive/bin/burn-fp8-cublaslt-tests",
            r#"if [ "$1" = --list ]; then printf 'epilogues::c: test\nd: test\n'; fi"#,
        );
        host.digits("echo trained");
        host.fused_matmul(5);
        host.char_lm(12);
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
        self.file(name, &format!("#!/bin/sh\n{script}\n"));
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

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_seeing(None, arguments)
    }

    /// With CUDA_VISIBLE_DEVICES.
    pub fn run_seeing(&self, devices: Option<&str>, arguments: &[&str]) -> Output {
        let search = std::env::var("PATH").unwrap();
        let mut command = Command::new(self.path("archive/run.sh"));
        match devices {
            Some(devices) => command.env("CUDA_VISIBLE_DEVICES", devices),
            None => command.env_remove("CUDA_VISIBLE_DEVICES"),
        };
        command
            .args(arguments)
            .args(["--python", "/no/such/python"])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{search}", self.path("bin").display()))
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env("CUDA_PATH", self.path("cuda"));
        run_to_end(&mut command).unwrap()
    }

    /// What the script finds missing.
    #[track_caller]
    pub fn missing(&self) -> String {
        let output = self.run(&["--check-only"]);
        let text = error(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        text.split_once("Missing:").expect("a list").1.to_owned()
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

pub fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
