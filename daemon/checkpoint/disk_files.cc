// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "daemon/checkpoint/files.h"
#include "wire/scoped_fd.h"

namespace dmuon::checkpoint {
namespace {

bool IsComponent(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

int Answer(int64_t result) { return result < 0 ? -errno : 0; }

// Beneath `directory`, whatever the name says and whoever changes the tree meanwhile.
int OpenBeneath(int directory, const std::string& name, uint64_t flags, wire::ScopedFd& fd) {
  if (!IsComponent(name)) return -EINVAL;
  struct open_how how {};
  how.flags = flags | O_CLOEXEC;
  how.mode = (flags & O_CREAT) != 0 ? S_IRUSR | S_IWUSR : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const int64_t result = ::syscall(SYS_openat2, directory, name.c_str(), &how, sizeof(how));
  if (result < 0) return -errno;
  fd = wire::ScopedFd(static_cast<int>(result));
  return 0;
}

class DiskFile : public File {
 public:
  explicit DiskFile(wire::ScopedFd fd) : fd_(std::move(fd)) {}

  int64_t Read(std::span<std::byte> to, uint64_t offset) override {
    const ssize_t count = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    return count < 0 ? -errno : count;
  }
  int64_t Write(std::span<const std::byte> from, uint64_t offset) override {
    const ssize_t count = ::pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset));
    return count < 0 ? -errno : count;
  }
  int64_t Bytes() override {
    struct stat status {};
    return ::fstat(fd_.get(), &status) != 0 ? -errno : status.st_size;
  }
  int64_t ChangedAt() override {
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) return -errno;
    return status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
  }
  int Sync() override { return Answer(::fsync(fd_.get())); }

 private:
  wire::ScopedFd fd_;
};

class DiskFolder : public Folder {
 public:
  explicit DiskFolder(wire::ScopedFd fd) : fd_(std::move(fd)) {}

  int OpenFolder(const std::string& name, std::unique_ptr<Folder>& folder) override {
    wire::ScopedFd fd;
    if (const int error = OpenBeneath(fd_.get(), name, O_RDONLY | O_DIRECTORY, fd); error != 0) return error;
    folder = std::make_unique<DiskFolder>(std::move(fd));
    return 0;
  }
  int MakeFolder(const std::string& name) override {
    return IsComponent(name) ? Answer(::mkdirat(fd_.get(), name.c_str(), S_IRWXU)) : -EINVAL;
  }
  int OpenFile(const std::string& name, std::unique_ptr<File>& file) override {
    wire::ScopedFd fd;
    // Without O_NONBLOCK a named pipe would be waited for.
    if (const int error = OpenBeneath(fd_.get(), name, O_RDONLY | O_NONBLOCK, fd); error != 0) return error;
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return -errno;
    if (!S_ISREG(status.st_mode)) return -EINVAL;
    file = std::make_unique<DiskFile>(std::move(fd));
    return 0;
  }
  int CreateFile(const std::string& name, std::unique_ptr<File>& file) override {
    wire::ScopedFd fd;
    const int error = OpenBeneath(fd_.get(), name, O_WRONLY | O_CREAT | O_EXCL, fd);
    if (error == 0) file = std::make_unique<DiskFile>(std::move(fd));
    return error;
  }
  int Rename(const std::string& from, const std::string& to) override {
    if (!IsComponent(from) || !IsComponent(to)) return -EINVAL;
    return Answer(::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()));
  }
  int Remove(const std::string& name) override {
    return IsComponent(name) ? Answer(::unlinkat(fd_.get(), name.c_str(), 0)) : -EINVAL;
  }
  int List(std::vector<std::string>& names) override;
  int Sync() override { return Answer(::fsync(fd_.get())); }
  int64_t FreeBytes() override {
    struct statvfs status {};
    if (::fstatvfs(fd_.get(), &status) != 0) return -errno;
    uint64_t bytes = 0;
    const uint64_t most = std::numeric_limits<int64_t>::max();
    if (__builtin_mul_overflow(status.f_bavail, status.f_frsize, &bytes) || bytes > most) bytes = most;
    return static_cast<int64_t>(bytes);
  }

 private:
  wire::ScopedFd fd_;
};

int DiskFolder::List(std::vector<std::string>& names) {
  // A description of its own, since reading moves it.
  const int fd = ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  DIR* directory = ::fdopendir(fd);
  if (directory == nullptr) {
    const int error = -errno;
    ::close(fd);
    return error;
  }
  names.clear();
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    if (std::string name = entry->d_name; IsComponent(name)) names.push_back(std::move(name));
    errno = 0;
  }
  const int error = -errno;
  ::closedir(directory);
  return error;
}

// Makes one directory, durably.
int MakeRoot(const std::string& path) {
  if (::mkdir(path.c_str(), S_IRWXU) != 0) return errno == EEXIST ? 0 : -errno;
  const size_t slash = path.find_last_of('/');
  const std::string above = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const wire::ScopedFd fd(::open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return -errno;
  return Answer(::fsync(fd.get()));
}

class Disk : public Files {
 public:
  int OpenRoot(const std::string& path, std::unique_ptr<Folder>& root) override {
    if (path.empty()) return -ENOENT;
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      if (end != 0 && path[std::min(end, path.size()) - 1] != '/') {
        if (const int error = MakeRoot(path.substr(0, end)); error != 0) return error;
      }
      if (end == std::string::npos) break;
    }
    // The path is the operator's: links in it are followed.
    wire::ScopedFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return -errno;
    root = std::make_unique<DiskFolder>(std::move(fd));
    return 0;
  }
};

}  // namespace

std::unique_ptr<File> FileOf(wire::ScopedFd fd) { return std::make_unique<DiskFile>(std::move(fd)); }

std::shared_ptr<Files> DiskFiles() { return std::make_shared<Disk>(); }

}  // namespace dmuon::checkpoint
