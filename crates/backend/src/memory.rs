//! Memory of this process as its container counts it: control groups of version 2, else of version
//! 1, else resident memory without a limit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Threshold of "no limit": version 1 expresses it by the largest number of pages, beyond any
/// machine's memory.
const UNLIMITED: u64 = 1 << 62;

/// Memory in use, and its limit, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Excludes file pages that the kernel would reclaim first.
    pub used_bytes: u64,
    /// Limit of the container; `None` without a limit or without a container.
    pub limit: Option<u64>,
}

/// Reader of the counters for this process's memory.
#[derive(Clone, Debug)]
pub struct MemoryReader(Source);

#[derive(Clone, Debug)]
enum Source {
    /// Folder of the group, or of a group around it with the lowest limit.
    Version2(PathBuf),
    Version1(PathBuf),
    Process(PathBuf),
}

impl MemoryReader {
    pub fn for_current_process() -> MemoryReader {
        MemoryReader::under(Path::new("/"))
    }

    fn under(root: &Path) -> MemoryReader {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let source = version_1(root, &groups)
            .or_else(|| version_2(root, &groups))
            .unwrap_or_else(|| Source::Process(root.join("proc/self/status")));
        MemoryReader(source)
    }

    /// Reads a few small files of the kernel.
    pub fn read(&self) -> io::Result<MemoryUse> {
        match &self.0 {
            Source::Version2(group) => Ok(MemoryUse {
                used_bytes: used(group, "memory.current", "inactive_file")?,
                limit: limit_2(group),
            }),
            Source::Version1(group) => Ok(MemoryUse {
                used_bytes: used(group, "memory.usage_in_bytes", "total_inactive_file")?,
                limit: limit_1(group),
            }),
            Source::Process(status) => {
                let status = fs::read_to_string(status)?;
                let resident = field(&status, "VmRSS:").ok_or_else(|| missing("VmRSS"))?;
                Ok(MemoryUse {
                    used_bytes: resident * 1024,
                    limit: None,
                })
            }
        }
    }
}

fn version_1(root: &Path, groups: &str) -> Option<Source> {
    let path = groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers
            .split(',')
            .any(|controller| controller == "memory")
            .then_some(path)
    })?;
    let mount = root.join("sys/fs/cgroup/memory");
    let group = folders(&mount, path).find(|group| group.join("memory.usage_in_bytes").exists())?;
    limit_1(&group)?;
    Some(Source::Version1(group))
}

fn version_2(root: &Path, groups: &str) -> Option<Source> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = root.join("sys/fs/cgroup");
    let limited_groups = folders(&mount, path).filter_map(|group| Some((limit_2(&group)?, group)));
    // The innermost of groups with equal limits.
    let (_, group) = limited_groups.min_by_key(|(limit, _)| *limit)?;
    Some(Source::Version2(group))
}

/// Folders of a group and the groups around it. In a container the mount is the group itself, and
/// the path is the one outside.
fn folders(mount: &Path, path: &str) -> impl Iterator<Item = PathBuf> {
    let mount = mount.to_owned();
    let group = mount.join(path.trim_start_matches('/'));
    let folders: Vec<_> = group.ancestors().map(Path::to_owned).collect();
    folders.into_iter().filter(move |it| it.starts_with(&mount))
}

fn limit_2(group: &Path) -> Option<u64> {
    number(&group.join("memory.max")).ok()
}

/// Lowest limit of the group and the groups around it; `None` if unlimited.
fn limit_1(group: &Path) -> Option<u64> {
    let own_limit = number(&group.join("memory.limit_in_bytes")).ok();
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let enclosing_limit = field(&stat, "hierarchical_memory_limit ");
    let limit = own_limit.into_iter().chain(enclosing_limit).min()?;
    (limit < UNLIMITED).then_some(limit)
}

fn used(group: &Path, usage: &str, inactive: &str) -> io::Result<u64> {
    let usage = number(&group.join(usage))?;
    let stat = fs::read_to_string(group.join("memory.stat"))?;
    let name = format!("{inactive} ");
    let inactive = field(&stat, &name).ok_or_else(|| missing(inactive))?;
    Ok(usage.saturating_sub(inactive))
}

fn number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Number in a line such as `VmRSS:  1234 kB` or `inactive_file 4096`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn missing(name: &str) -> io::Error {
    io::Error::other(format!("{name} is not said"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(files: &[(&str, &str)]) -> Machine {
            let dir = tempfile::tempdir().expect("a folder");
            let machine = Machine(dir);
            machine.set("proc/self/status", "Name:\tboat\nVmRSS:\t  1000 kB\n");
            for (path, text) in files {
                machine.set(path, text);
            }
            machine
        }

        fn set(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }

        fn read(&self) -> MemoryUse {
            MemoryReader::under(self.0.path()).read().expect("said")
        }
    }

    fn used(used_bytes: u64, limit: impl Into<Option<u64>>) -> MemoryUse {
        let limit = limit.into();
        MemoryUse { used_bytes, limit }
    }

    const RESIDENT: MemoryUse = MemoryUse {
        used_bytes: 1_024_000,
        limit: None,
    };

    #[test]
    fn a_container_of_version_2_is_its_own_mount() {
        let machine = Machine::new(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "4000\n"),
            ("sys/fs/cgroup/memory.current", "3000\n"),
            (
                "sys/fs/cgroup/memory.stat",
                "anon 100\ninactive_anon 7\ninactive_file 500\n",
            ),
        ]);
        assert_eq!(machine.read(), used(2500, 4000));
        // Outside its namespace the group bears a name that is not in the mount.
        machine.set("proc/self/cgroup", "0::/kubepods/burstable/pod1/c1\n");
        assert_eq!(machine.read(), used(2500, 4000));
    }

    #[test]
    fn the_lowest_limit_of_version_2_counts_with_its_own_use() {
        let machine = Machine::new(&[
            ("proc/self/cgroup", "0::/a.slice/b.service\n"),
            ("sys/fs/cgroup/a.slice/memory.max", "4000\n"),
            ("sys/fs/cgroup/a.slice/memory.current", "3000\n"),
            ("sys/fs/cgroup/a.slice/memory.stat", "inactive_file 0\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.current", "20\n"),
            (
                "sys/fs/cgroup/a.slice/b.service/memory.stat",
                "inactive_file 5\n",
            ),
        ]);
        assert_eq!(machine.read(), used(3000, 4000));
        machine.set("sys/fs/cgroup/a.slice/b.service/memory.max", "4000\n");
        assert_eq!(machine.read(), used(15, 4000));
        machine.set("sys/fs/cgroup/a.slice/memory.max", "max\n");
        machine.set("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
        assert_eq!(machine.read(), RESIDENT);
    }

    #[test]
    fn version_1_is_read_where_it_counts_memory() {
        let machine = Machine::new(&[
            (
                "proc/self/cgroup",
                "4:cpu,memory:/docker/c1\n1:pids:/\n0::/\n",
            ),
            (
                "sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes",
                "3000\n",
            ),
            (
                "sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            (
                "sys/fs/cgroup/memory/docker/c1/memory.stat",
                "inactive_file 1\nhierarchical_memory_limit 5000\ntotal_inactive_file 400\n",
            ),
        ]);
        assert_eq!(machine.read(), used(2600, 5000));
        let limit = "sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes";
        machine.set(limit, "4500\n");
        assert_eq!(machine.read(), used(2600, 4500));
        // The container's own mount, under the name used outside.
        machine.set("proc/self/cgroup", "4:memory:/docker/other\n");
        for (name, text) in [
            ("usage_in_bytes", "70"),
            ("limit_in_bytes", "90"),
            ("stat", "total_inactive_file 30"),
        ] {
            machine.set(&format!("sys/fs/cgroup/memory/memory.{name}"), text);
        }
        assert_eq!(machine.read(), used(40, 90));
    }

    #[test]
    fn resident_memory_counts_without_a_limit() {
        assert_eq!(Machine::new(&[]).read(), RESIDENT);
        let machine = Machine::new(&[
            ("proc/self/cgroup", "4:memory:/\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(machine.read(), RESIDENT);
    }

    #[test]
    fn changed_limit_is_seen_and_unreadable_file_is_an_error() {
        let machine = Machine::new(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "4000\n"),
            ("sys/fs/cgroup/memory.current", "3000\n"),
            ("sys/fs/cgroup/memory.stat", "inactive_file 0\n"),
        ]);
        let reader = MemoryReader::under(machine.0.path());
        machine.set("sys/fs/cgroup/memory.max", "8000\n");
        assert_eq!(reader.read().expect("said"), used(3000, 8000));
        machine.set("sys/fs/cgroup/memory.current", "many\n");
        assert!(reader.read().is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_some() {
        let now = MemoryReader::for_current_process().read().expect("said");
        assert!(now.used_bytes > 1 << 20, "{now:?}");
        assert!(
            now.limit.is_none_or(|limit| limit > now.used_bytes),
            "{now:?}"
        );
    }
}
