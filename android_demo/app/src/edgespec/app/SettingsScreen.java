package edgespec.app;

import android.content.Context;
import android.text.InputType;
import android.view.View;
import android.widget.Button;
import android.widget.CheckBox;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.ScrollView;
import android.widget.TextView;

/** Shows the settings: server, key and the model on the phone. They take effect when saved. */
final class SettingsScreen {
    final ScrollView root;
    private final Context context;
    private final ModelFile modelFile;
    private final LinearLayout column;
    private final EditText server;
    private final EditText key;
    private final CheckBox cleartext;
    private final TextView refusal;
    private final EditText model;
    private final TextView modelState;

    /** @param onClick runs when a button is touched, whose id is R.id.choose or R.id.save */
    SettingsScreen(Context context, ModelFile modelFile, View.OnClickListener onClick) {
        this.context = context;
        this.modelFile = modelFile;
        column = Ui.column(context);
        Ui.pad(column, 16, 8);
        server = field(R.id.server, R.string.server,
                InputType.TYPE_CLASS_TEXT | InputType.TYPE_TEXT_VARIATION_URI);
        server.setHint(R.string.server_hint);
        key = field(R.id.key, R.string.key,
                InputType.TYPE_CLASS_TEXT | InputType.TYPE_TEXT_VARIATION_PASSWORD);
        cleartext = new CheckBox(context);
        cleartext.setId(R.id.cleartext);
        cleartext.setText(R.string.cleartext);
        Ui.style(cleartext, 16, R.color.text);
        Ui.touchable(cleartext);
        add(cleartext);
        add(Ui.text(context, context.getString(R.string.cleartext_why), 14, R.color.quiet));
        refusal = Ui.text(context, "", 16, R.color.error);
        refusal.setId(R.id.refusal);
        refusal.setAccessibilityLiveRegion(View.ACCESSIBILITY_LIVE_REGION_POLITE);
        add(refusal);
        model = field(R.id.model, R.string.model,
                InputType.TYPE_CLASS_TEXT | InputType.TYPE_TEXT_VARIATION_URI);
        model.setHint(R.string.model_hint);
        button(R.id.choose, R.string.choose, onClick);
        modelState = Ui.text(context, "", 14, R.color.quiet);
        modelState.setId(R.id.model_state);
        add(modelState);
        button(R.id.save, R.string.save, onClick);
        root = new ScrollView(context);
        root.addView(column);
    }

    private EditText field(int id, int label, int inputType) {
        TextView name = Ui.text(context, context.getString(label), 14, R.color.quiet);
        name.setLabelFor(id);
        Ui.pad(name, 0, 8);
        add(name);
        EditText field = new EditText(context);
        field.setId(id);
        field.setInputType(inputType);
        Ui.style(field, 16, R.color.text);
        Ui.touchable(field);
        add(field);
        return field;
    }

    private void button(int id, int label, View.OnClickListener onClick) {
        Button button = new Button(context);
        button.setId(id);
        button.setText(label);
        button.setAllCaps(false);
        button.setOnClickListener(onClick);
        Ui.touchable(button);
        column.addView(button, Ui.small());
    }

    private void add(View view) {
        column.addView(view, Ui.wide());
    }

    /** Fills the fields with the settings. */
    void fill(Choices choices) {
        server.setText(choices.server);
        key.setText(choices.key);
        cleartext.setChecked(choices.cleartext);
        model.setText(choices.model);
        refusal.setText("");
    }

    Choices choices() {
        return new Choices(server.getText().toString(), key.getText().toString(),
                cleartext.isChecked(), model.getText().toString());
    }

    /** Shows a sentence that says why the settings are not saved. */
    void refuse(String sentence) {
        refusal.setText(sentence);
    }

    /** Shows the path of the model. */
    void showModel(String path) {
        model.setText(path);
    }

    /** Shows the progress of copying a model. */
    void refresh() {
        String state = modelFile.state();
        if (NativeModel.unavailable() != null) {
            state = NativeModel.unavailable();
        } else if (state.isEmpty()) {
            state = context.getString(R.string.model_why);
        }
        modelState.setText(state);
    }
}
