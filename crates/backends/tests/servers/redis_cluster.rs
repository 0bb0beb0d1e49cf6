//! A cluster of Redis in a scratch directory.

use std::fs::File;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::mariadb::processor_seconds;

/// Longest wait for nodes to start and to agree.
const START_SECONDS_MAX: u64 = 120;

const NODES: usize = 3;

/// Ports of nodes.
const PORTS: Range<u32> = 12_000..32_000;

/// Three nodes on the loopback interface, each with a third of the slots. They are killed when this is dropped.
pub(crate) struct RedisCluster {
    directory: TempDir,
    nodes: Vec<(u16, Option<Child>)>,
}

impl RedisCluster {
    /// Starts the nodes and makes them a cluster.
    pub(crate) fn start() -> Self {
        let directory = TempDir::new().unwrap();
        // A port for clients and one for other nodes.
        let ports: Vec<u16> = std::iter::repeat_with(free_port).take(2 * NODES).collect();
        let mut cluster = Self { directory, nodes: Vec::new() };
        for ports in ports.chunks(2) {
            let name = format!("node{}", ports[0]);
            let place = cluster.directory.path().join(name);
            std::fs::create_dir(&place).unwrap();
            let node = start_node(&place, ports[0], ports[1]);
            cluster.nodes.push((ports[0], Some(node)));
        }
        for port in cluster.ports() {
            cluster.wait_for(port, &["ping"], "PONG");
        }
        let joined = Command::new("redis-cli")
            .args(["--cluster", "create", "--cluster-yes", "--cluster-replicas", "0"])
            .args(cluster.ports().iter().map(|port| format!("127.0.0.1:{port}")))
            .stdout(Stdio::null())
            .status()
            .expect("redis-cli of the package redis-tools");
        assert!(joined.success());
        for port in cluster.ports() {
            cluster.wait_for(port, &["cluster", "info"], "cluster_state:ok");
        }
        cluster
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|(port, _)| *port).collect()
    }

    /// Returns the address of the cluster.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis://{}", hosts.join(","))
    }

    /// Kills a node. What it holds is lost.
    pub(crate) fn kill(&mut self, index: usize) {
        if let Some(mut node) = self.nodes[index].1.take() {
            node.kill().unwrap();
            node.wait().unwrap();
        }
    }

    /// Makes a node write what it holds to its disk. It has that again when it is restarted.
    #[allow(dead_code, reason = "a test of another crate shares this file")]
    pub(crate) fn dump(&self, index: usize) {
        self.wait_for(self.nodes[index].0, &["save"], "OK");
    }

    /// Starts a node again, empty but for its slots and its last dump.
    pub(crate) fn restart(&mut self, index: usize) {
        self.kill(index);
        let port = self.nodes[index].0;
        let place = self.directory.path().join(format!("node{port}"));
        let config = std::fs::read_to_string(place.join("bus")).unwrap();
        self.nodes[index].1 = Some(start_node(&place, port, config.parse().unwrap()));
        for port in self.ports() {
            self.wait_for(port, &["cluster", "info"], "cluster_state:ok");
        }
    }

    fn wait_for(&self, port: u16, command: &[&str], answer: &str) {
        let start = Instant::now();
        loop {
            let run = Command::new("redis-cli").args(["-p", &port.to_string()]).args(command).output().unwrap();
            if String::from_utf8_lossy(&run.stdout).contains(answer) {
                return;
            }
            let log = || std::fs::read_to_string(self.directory.path().join(format!("node{port}/log"))).unwrap();
            assert!(start.elapsed().as_secs() < START_SECONDS_MAX, "node {port}: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the processor seconds that the nodes have taken.
    #[allow(dead_code, reason = "a test of another crate shares this file, and measures nothing")]
    pub(crate) fn processor_seconds(&self) -> f64 {
        self.nodes.iter().filter_map(|(_, node)| node.as_ref()).map(|node| processor_seconds(node.id())).sum()
    }
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|index| self.kill(index));
    }
}

/// Returns a port that nobody listens on. It is below those that the system gives to connections, and no other test of this process
/// gets it.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::SeqCst));
        let port = u16::try_from(PORTS.start + number % (PORTS.end - PORTS.start)).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn start_node(place: &Path, port: u16, bus: u16) -> Child {
    std::fs::write(place.join("bus"), bus.to_string()).unwrap();
    let log = File::options().create(true).append(true).open(place.join("log")).unwrap();
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"])
        .args(["--save", "", "--appendonly", "no", "--cluster-node-timeout", "2000"])
        .args(["--port", &port.to_string(), "--cluster-port", &bus.to_string()])
        .current_dir(place)
        .stdout(log)
        .spawn()
        .expect("redis-server of the package redis-server")
}
