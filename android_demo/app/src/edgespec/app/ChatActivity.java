package edgespec.app;

import android.app.Activity;
import android.content.ActivityNotFoundException;
import android.content.Intent;
import android.content.SharedPreferences;
import android.os.Bundle;
import android.view.Menu;
import android.view.MenuItem;
import android.view.View;
import android.widget.FrameLayout;

/**
 * The app's only window: the conversation, and the settings over it. Whatever must outlive the window
 * is in {@link DemoApp}, in views with ids, and in preferences.
 */
public final class ChatActivity extends Activity implements View.OnClickListener, Runnable {
    private static final int PICK_MODEL = 1;
    private static final String SETTINGS_OPEN = "settings open";
    private static final String SHOW_DRAFTS = "show drafts";

    private DemoApp app;
    private SharedPreferences preferences;
    private ChatScreen chat;
    private SettingsScreen settings;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        app = (DemoApp) getApplication();
        preferences = getSharedPreferences("settings", MODE_PRIVATE);
        chat = new ChatScreen(this, app.conversation, this);
        chat.showDrafts(preferences.getBoolean(SHOW_DRAFTS, false));
        settings = new SettingsScreen(this, app.modelFile, this);
        settings.fill(Choices.load(preferences));
        FrameLayout both = new FrameLayout(this);
        both.addView(chat.root);
        both.addView(settings.root);
        setContentView(both);
        openSettings(saved != null && saved.getBoolean(SETTINGS_OPEN));
    }

    @Override
    protected void onStart() {
        super.onStart();
        app.changes.watch(this);
        run();
    }

    @Override
    protected void onStop() {
        super.onStop();
        app.changes.watch(null);
        app.conversation.save();
    }

    @Override
    protected void onSaveInstanceState(Bundle state) {
        super.onSaveInstanceState(state);
        state.putBoolean(SETTINGS_OPEN, settingsAreOpen());
    }

    /** Shows what has changed. */
    @Override
    public void run() {
        chat.refresh();
        String path = app.modelFile.takeArrived();
        if (path != null) {
            preferences.edit().putString("model", path).apply();
            settings.showModel(path);
        }
        if (settingsAreOpen()) {
            settings.refresh();
        }
    }

    @Override
    public void onClick(View view) {
        if (view.getId() == R.id.send) {
            sendOrStop();
        } else if (view.getId() == R.id.choose) {
            chooseModel();
        } else {
            saveSettings();
        }
    }

    private void sendOrStop() {
        if (app.conversation.isAnswering()) {
            app.conversation.stop();
            return;
        }
        String text = chat.takeMessage();
        if (!text.isEmpty()) {
            app.conversation.send(text, Choices.load(preferences));
        }
    }

    // The menu

    @Override
    public boolean onCreateOptionsMenu(Menu menu) {
        menu.add(Menu.NONE, R.id.settings, 0, R.string.settings)
                .setShowAsAction(MenuItem.SHOW_AS_ACTION_IF_ROOM);
        menu.add(Menu.NONE, R.id.show_drafts, 1, R.string.show_drafts).setCheckable(true)
                .setChecked(preferences.getBoolean(SHOW_DRAFTS, false));
        menu.add(Menu.NONE, R.id.new_conversation, 2, R.string.new_conversation);
        return true;
    }

    @Override
    public boolean onOptionsItemSelected(MenuItem item) {
        int id = item.getItemId();
        if (id == R.id.settings) {
            if (!settingsAreOpen()) {
                settings.fill(Choices.load(preferences));
                openSettings(true);
            }
        } else if (id == R.id.new_conversation) {
            app.conversation.reset();
        } else if (id == R.id.show_drafts) {
            boolean show = !item.isChecked();
            item.setChecked(show);
            preferences.edit().putBoolean(SHOW_DRAFTS, show).apply();
            chat.showDrafts(show);
        } else {
            return super.onOptionsItemSelected(item);
        }
        return true;
    }

    // The settings

    private void openSettings(boolean open) {
        settings.root.setVisibility(open ? View.VISIBLE : View.GONE);
        chat.root.setVisibility(open ? View.GONE : View.VISIBLE);
        setTitle(open ? R.string.settings : R.string.app_name);
        if (open) {
            settings.refresh();
        }
    }

    private boolean settingsAreOpen() { return settings.root.getVisibility() == View.VISIBLE; }

    @Override
    public void onBackPressed() {
        if (settingsAreOpen()) {
            openSettings(false);
        } else {
            super.onBackPressed();
        }
    }

    private void saveSettings() {
        Choices choices = settings.choices();
        String refusal = choices.refusal();
        if (refusal != null) {
            settings.refuse(refusal);
            return;
        }
        choices.save(preferences);
        openSettings(false);
    }

    private void chooseModel() {
        Intent pick = new Intent(Intent.ACTION_OPEN_DOCUMENT);
        pick.addCategory(Intent.CATEGORY_OPENABLE);
        pick.setType("*/*"); // no type is registered for GGUF
        try {
            startActivityForResult(pick, PICK_MODEL);
        } catch (ActivityNotFoundException error) {
            settings.refuse(getString(R.string.no_picker));
        }
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        if (request == PICK_MODEL && result == RESULT_OK && data != null && data.getData() != null) {
            app.modelFile.copy(data.getData());
        }
    }
}
