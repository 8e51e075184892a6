// Which rank a process is, as the variables of launchers say it.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::dist {
namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;

// The environment belongs to the process: each case in one of its own.
std::string environment_as_seen(const Variables& variables) {
  LaunchOptions one;
  one.world_size = 1;
  return fork_processes(
             one,
             [&](int) -> std::string {
               for (const char* name :
                    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                     "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_PROCID",
                     "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE",
                     "SLURM_TASKS_PER_NODE", "TORCHELASTIC_USE_AGENT_STORE"}) {
                 ::unsetenv(name);
               }
               for (const auto& [name, value] : variables) ::setenv(name, value, 1);
               try {
                 const auto env = rank_environment();
                 if (!env) return "none";
                 return fmt::format("{} {}/{}, here {}/{} :{}", env->launcher, env->rank,
                                    env->world_size, env->local_rank, env->local_world_size,
                                    env->master_port);
               } catch (const Error& error) {
                 return error.what();
               }
             })
      .front()
      .result;
}

TEST(Environment, OfEveryLauncherIsUnderstood) {
  EXPECT_EQ(environment_as_seen({}), "none");
  EXPECT_EQ(environment_as_seen({{"RANK", "1"},
                                 {"WORLD_SIZE", "4"},
                                 {"LOCAL_RANK", "0"},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"MASTER_PORT", "1234"}}),
            "torchrun 1/4, here 0/2 :1234");
  EXPECT_EQ(environment_as_seen({{"OMPI_COMM_WORLD_RANK", "0"},
                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
            "Open MPI 0/4, here 0/2 :29500");
  EXPECT_EQ(environment_as_seen({{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "5"}}),
            "Slurm 4/5, here 0/1 :29500");
}

// Who starts ranks by hand says no more than RANK and WORLD_SIZE.
TEST(Environment, RanksThatMeetAtLoopbackAreAllOnThisMachine) {
  const auto seen = [](const char* address, Variables more = {}) {
    more.insert(more.end(), {{"RANK", "1"}, {"WORLD_SIZE", "3"}});
    if (address != nullptr) more.emplace_back("MASTER_ADDR", address);
    return environment_as_seen(more);
  };
  for (const char* address : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) {
    EXPECT_EQ(seen(address), "torchrun 1/3, here 1/3 :29500") << address;
  }
  EXPECT_EQ(seen(nullptr), "torchrun 1/3, here 1/3 :29500");
  EXPECT_EQ(seen("192.0.2.1"), "torchrun 1/3, here 0/1 :29500");
  EXPECT_EQ(seen(nullptr, {{"LOCAL_WORLD_SIZE", "2"}}), "torchrun 1/3, here 0/2 :29500");
}

TEST(Environment, SlurmSaysHowManyTasksANodeHas) {
  const auto seen = [](const char* tasks, const char* node, Variables more = {}) {
    more.insert(more.end(), {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "12"}});
    more.emplace_back("SLURM_TASKS_PER_NODE", tasks);
    if (node != nullptr) more.emplace_back("SLURM_NODEID", node);
    const std::string all = environment_as_seen(more);
    return all.substr(all.find("here"));
  };
  EXPECT_EQ(seen("2(x3)", "2"), "here 0/2 :29500");
  EXPECT_EQ(seen("4,2", "0"), "here 0/4 :29500");
  EXPECT_EQ(seen("4,2", "1"), "here 0/2 :29500");
  const char* several = "1,4(x2),3";
  EXPECT_EQ(seen(several, "0"), "here 0/1 :29500");
  EXPECT_EQ(seen(several, "2"), "here 0/4 :29500");
  EXPECT_EQ(seen(several, "3"), "here 0/3 :29500");
  // Which node this is cannot be told.
  EXPECT_EQ(seen(several, "4"), "here 0/4 :29500");
  EXPECT_EQ(seen(several, nullptr), "here 0/4 :29500");
  // The job has more tasks than this step of it, and the step says so itself where it can.
  EXPECT_EQ(seen("64", "0"), "here 0/12 :29500");
  EXPECT_EQ(seen("64", "0", {{"SLURM_STEP_TASKS_PER_NODE", "6(x2)"}, {"SLURM_LOCALID", "5"}}),
            "here 5/6 :29500");
}

TEST(Environment, NonsenseIsNamed) {
  using ::testing::HasSubstr;
  EXPECT_THAT(environment_as_seen({{"RANK", "1"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(environment_as_seen({{"RANK", "3"}, {"WORLD_SIZE", "3"}}), HasSubstr("RANK='3'"));
  EXPECT_THAT(environment_as_seen({{"RANK", "x"}, {"WORLD_SIZE", "3"}}), HasSubstr("RANK='x'"));
  EXPECT_THAT(environment_as_seen({{"RANK", "0"}, {"WORLD_SIZE", "0"}}),
              HasSubstr("WORLD_SIZE='0'"));
  EXPECT_THAT(environment_as_seen({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("MASTER_PORT='70000'"));
  EXPECT_THAT(environment_as_seen({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}}),
              HasSubstr("LOCAL_WORLD_SIZE='3'"));
}

TEST(Environment, NonsenseOfSlurmIsNamed) {
  using ::testing::HasSubstr;
  const Variables task = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};
  const auto seen = [&](const char* name, const char* value) {
    Variables all = task;
    all.emplace_back(name, value);
    if (std::string(name) == "SLURM_NODEID") all.emplace_back("SLURM_TASKS_PER_NODE", "2(x2)");
    return environment_as_seen(all);
  };
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    for (const char* value : {"", "two", "0", "-2", "2,", ",2", "2(x", "2(x0)", "2(x2", "2(3)",
                              "2x3", "2 ", "99999999999", "2(x99999999999)"}) {
      EXPECT_THAT(seen(name, value), HasSubstr(fmt::format("{}='{}' makes no sense", name, value)));
    }
  }
  EXPECT_THAT(seen("SLURM_NODEID", "first"), HasSubstr("SLURM_NODEID='first' makes no sense"));
  EXPECT_THAT(seen("SLURM_NODEID", "-1"), HasSubstr("SLURM_NODEID='-1' makes no sense"));
}

}  // namespace
}  // namespace zero::dist
