// Plays the device: notes how far each queue waits for the other, and looks at that in each call.

#include <vector>

#include <grading/check.hpp>

#include "10e.hpp"

namespace exercise_10e {

using zero::exercise::refuse;

class Queues final : public Device {
 public:
  explicit Queues(int layers) : inputs_(layers), forwards_left_(layers), backwards_left_(layers) {
    inputs_.front().is_here = true;
  }

  int layers() const override { return static_cast<int>(inputs_.size()); }

  void forward(int layer) override {
    run(layer, "forward", layers() - forwards_left_--);
    if (layer > 0 && copies_ == copies_waited_for_) {
      refuse("layer {} runs forward while no copy is on its way: nothing hides them", layer);
    }
    if (layer + 1 < layers()) inputs_[layer + 1] = {.is_here = true, .made = computed_};
  }

  void backward(int layer) override {
    run(layer, "backward", forwards_left_ > 0 ? -1 : --backwards_left_);
    if (inputs_[layer].in > copies_waited_for_) {
      refuse("layer {} runs again and does not wait for the copy in of its input", layer);
    }
    if (layer > 0 && inputs_[layer - 1].in <= copies_waited_for_) {
      refuse("layer {} runs again while the next input is not on its way: nothing hides its copy",
             layer);
    }
  }

  void give_back(int layer) override {
    Input& input = here(layer, "given back");
    if (input.out == 0) refuse("the input of layer {} is given back and did not leave", layer);
    if (input.out > copies_waited_for_) {
      refuse(
          "the input of layer {} is given back while its copy out may run: another tensor is "
          "written over what is being copied",
          layer);
    }
    input.is_here = false;
    given_back_ = ++computed_;
  }

  void copy_out(int layer) override {
    Input& input = here(layer, "copied out");
    if (input.out > 0) refuse("the input of layer {} leaves twice", layer);
    if (input.made > computing_waited_for_) {
      refuse("the copy out of layer {}'s input does not wait for the layer that makes it", layer);
    }
    input.out = ++copies_;
  }

  void copy_in(int layer) override {
    Input& input = at(layer);
    if (input.is_here) refuse("the input of layer {} comes in and is there already", layer);
    if (given_back_ > computing_waited_for_) {
      refuse(
          "the copy in of layer {}'s input does not wait for the computing before: it may "
          "overwrite what is still in use",
          layer);
    }
    input.is_here = true;
    input.in = ++copies_;
  }

  void computing_waits() override { copies_waited_for_ = copies_; }
  void copies_wait() override { computing_waited_for_ = computed_; }

  void check_end() {
    if (backwards_left_ > 0) refuse("{} layers have not run backward", backwards_left_);
    if (copies_ > 2 * layers() - 1) {
      refuse("there are {} copies: the last layer's input need not come back", copies_);
    }
    for (int k = 0; k < layers(); ++k) {
      if (inputs_[k].is_here) refuse("the input of layer {} is on the device at the end", k);
    }
  }

 private:
  struct Input {
    bool is_here = false;
    int made = 0, out = 0, in = 0;  // after so many calls of their queue
  };

  Input& at(int layer) {
    if (layer < 0 || layer >= layers()) refuse("there is no layer {}", layer);
    return inputs_[layer];
  }
  Input& here(int layer, const char* what) {
    Input& input = at(layer);
    if (!input.is_here) refuse("the input of layer {} is {} and not on the device", layer, what);
    return input;
  }
  void run(int layer, const char* pass, int expected) {
    if (layer != expected) refuse("layer {} runs {} out of turn", layer, pass);
    here(layer, "used");
    int held = 0;
    for (const Input& input : inputs_) held += input.is_here ? 1 : 0;
    if (held > 2) refuse("{} inputs are on the device while layer {} runs {}", held, layer, pass);
    ++computed_;
  }

  std::vector<Input> inputs_;
  int forwards_left_, backwards_left_;
  int computed_ = 0, copies_ = 0, given_back_ = 0;
  int computing_waited_for_ = 0, copies_waited_for_ = 0;  // by the other queue
};

void check(const Answer& answer) {
  for (const int layers : {5, 3, 2, 1}) {
    zero::exercise::in_case(fmt::format("with {} layers", layers), [&] {
      Queues device(layers);
      answer.run_step(device);
      device.check_end();
    });
  }
}

}  // namespace exercise_10e
